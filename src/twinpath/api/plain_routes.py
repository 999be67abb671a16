"""The small endpoints: models, health, metrics, the OpenAPI document, and what answers when nothing matches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from twinpath.api.envelope import Headers
from twinpath.api.exchange import Exchange
from twinpath.api.ports import Replica
from twinpath.api.responses import Health, ModelCard, ModelList
from twinpath.errors import ModelNotFound, RequestError, RouteNotFound

JSON: Headers = [(b"content-type", b"application/json")]


async def respond(send: Send, body: bytes, *, status: int = 200, headers: Headers = JSON) -> None:
    """A small answer in one piece."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Allow:
    """Passes the methods an endpoint has; others get a 405 in the envelope."""

    def __init__(self, endpoint: ASGIApp, *methods: str) -> None:
        self._endpoint = endpoint
        self._methods = methods

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["method"] not in self._methods:
            allowed = ", ".join(self._methods)
            Exchange.of(scope).headers.append((b"allow", allowed.encode()))
            raise RequestError(f"{scope['path'][:200]} takes {allowed} only.", status=405)
        return self._endpoint(scope, receive, send)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The router's last resort."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    raise RouteNotFound(f"There is no {scope['path'][:200]} here; /openapi.json lists what there is.")


class Models:
    """GET /v1/models and /v1/models/{id}; an id may hold slashes."""

    def __init__(self, model_name: str, replica: Replica, *, created: int) -> None:
        self._model_name = model_name
        self._replica = replica
        self._created = created

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, msgspec.json.encode(ModelList(data=[self._card()])))

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path_params"]["id"] != self._model_name:
            raise ModelNotFound("There is no such model here; see /v1/models.", param="model")
        await respond(send, msgspec.json.encode(self._card()))

    def _card(self) -> ModelCard:
        info = self._replica.info
        return ModelCard(
            id=self._model_name, created=self._created, max_model_len=None if info is None else info.max_model_len
        )


class HealthChecks:
    """GET /health (live) and /health/ready.

    Live: this loop answers and the engine is there, or is being brought back. Ready: weights loaded, one real forward
    done, and not stalled: work without a token for `stall_s` means that new work would only join the queue.
    """

    def __init__(self, replica: Replica, *, stall_s: float) -> None:
        self._replica = replica
        self._stall_s = stall_s

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = str(self._replica.state)
        await self._answer(send, "ok" if state not in ("failed", "stopped") else f"engine {state}")

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(send, self.readiness())

    def readiness(self) -> str:
        """`ok`, or why a request sent now would not be worked on."""
        state = str(self._replica.state)
        silence_s = self._replica.seconds_since_token
        if state != "ready":
            return f"engine {state}"
        if self._replica.holdings.num_computing:
            return "computing pinned templates"
        if silence_s is not None and silence_s > self._stall_s:
            return f"no token for {silence_s:.0f} s with requests running"
        return "ok"

    async def _answer(self, send: Send, status: str) -> None:
        body = msgspec.json.encode(Health(status=status))
        await respond(send, body, status=200 if status == "ok" else 503)


class Rendered:
    """GET of bytes that a function makes: metrics, the OpenAPI document."""

    def __init__(self, render: Callable[[], bytes], content_type: bytes) -> None:
        self._render = render
        self._headers: Headers = [(b"content-type", content_type)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, self._render(), headers=self._headers)
