"""Pure ASGI layers around the routes, outermost first: Exchanges (ids, the error envelope, log line), Cors, Auth.

`BaseHTTPMiddleware` is not used anywhere: it hides disconnects from the endpoint. A layer that only passes on is no
coroutine: every one of them would be woken for every token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twinpath.api.body import ClientGone
from twinpath.api.cors import OriginRule
from twinpath.api.deadlines import promise_headers
from twinpath.api.envelope import envelope_on, error_headers, internal_error
from twinpath.api.exchange import Exchange
from twinpath.api.generation import shutting_down
from twinpath.api.headers import header
from twinpath.api.identity import KeyRing
from twinpath.errors import RequestError

OPEN_PATHS = frozenset({"/health", "/health/ready"})
CLIENT_GONE_STATUS = 499


class Exchanges:
    """Gives every request an `Exchange`, puts its headers on the answer, and reports it when it is over.

    Every exception becomes the envelope; a started answer is broken off, so that nobody takes it for whole.
    """

    def __init__(self, app: ASGIApp, *, report: Callable[[Exchange], None], log: logging.Logger) -> None:
        self._app = app
        self._report = report
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange.begin(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message["headers"], *exchange.headers]
                if exchange.turns and exchange.turns[0].promise is not None:
                    message["headers"] += promise_headers(exchange.turns[0])
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            await self._fail(scope, exchange, send_with_headers, error)
        except asyncio.CancelledError:
            # Only a stopping server cancels exchanges; a started stream has told its client by now.
            if not exchange.status:
                await _refuse(scope, exchange, send_with_headers, shutting_down())
        finally:
            self._report(exchange)

    async def _fail(self, scope: Scope, exchange: Exchange, send: Send, error: Exception) -> None:
        if isinstance(error, RequestError):
            await _refuse(scope, exchange, send, error)
        elif isinstance(error, ClientGone):
            exchange.reason = error.reason
            if not exchange.status:
                exchange.status = CLIENT_GONE_STATUS
            _abort(scope)
        else:
            self._log.error("%s failed: %s", exchange.request_id, type(error).__name__, exc_info=error)
            await _refuse(scope, exchange, send, internal_error())


class Cors:
    """Answers preflights without a key and lets browsers read every answer, errors included."""

    def __init__(self, app: ASGIApp, *, allowed_origins: tuple[str, ...]) -> None:
        self._app = app
        self._rule = OriginRule(allowed_origins)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            Exchange.of(scope).headers += self._rule.headers(header(scope, b"origin"))
            if scope["method"] == "OPTIONS":
                return _answer_preflight(scope, send)
        return self._app(scope, receive, send)


async def _answer_preflight(scope: Scope, send: Send) -> None:
    asked = header(scope, b"access-control-request-headers")
    headers = [
        (b"allow", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (
            b"access-control-allow-headers",
            asked or b"authorization, content-type, x-api-key, x-request-id, x-session-id",
        ),
        (b"access-control-max-age", b"86400"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class Auth:
    """Checks the API key on every path but health (preflights ended in `Cors`)."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            Exchange.of(scope).caller = self._keys.identify(scope)
        return self._app(scope, receive, send)


async def _refuse(scope: Scope, exchange: Exchange, send: Send, error: RequestError) -> None:
    exchange.reason = exchange.reason or f"error:{error.code or error.type}"
    if exchange.status:
        _abort(scope)
        return
    body = envelope_on(exchange.path, error)
    headers = [*error_headers(error), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _abort(scope: Scope) -> None:
    """Drop the connection with what is still buffered for it (a close would wait for a reader that does not read)."""
    extension = scope.get("extensions", {}).get("twinpath.abort")
    if extension is not None:
        extension["call"]()
