"""uvicorn's HTTP/1.1 protocol with the limits and the manners a public port needs.

What it adds: a bound on connections, on header bytes and on the time headers take; refusals in the error envelope; a
way to abort a connection whose reader stalls; idle timeouts also before the first request; offers of other protocols
declined without losing the body.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from twinpath.api.cors import OriginRule
from twinpath.api.cycle import Cycle
from twinpath.api.refusal import refusal, unread_head
from twinpath.errors import Overloaded, RequestError

MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 200
#: From a request's first byte to the end of its headers.
HEADER_TIMEOUT_S = 30.0
#: Requests that may wait on a connection for the answer of the one before.
MAX_PIPELINED = 16


class _HeadTooLarge(ValueError):
    """More than the limits allow."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. The first four are set by `bounded_protocol`; every refused connection hears a 503 first."""

    max_connections = 10_000
    keepalive = True
    origins = OriginRule()
    #: Told when the first bytes of a request with a body are there: what it needs can wake up meanwhile.
    expect: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._refusal: RequestError | None = None
        #: The answer to a head that cannot be used, which has to wait for the answers before it.
        self._last_words = b""
        #: What is being answered; `cycle` is the newest, which may have to wait.
        self._answering: RequestResponseCycle | None = None
        #: Runs while a head has begun and is not complete at the end of a read.
        self._header_timer: asyncio.TimerHandle | None = None
        self._head_is_open = False
        #: At least what was read of the current head.
        self._num_read = 0
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self.max_connections:
            self._end_with(refusal(_full(self.max_connections), b"", (), self.origins))
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            # uvicorn tells the newest only.
            self._answering.disconnected = True
            self._answering.message_event.set()
        # uvicorn does this for a clean end only; a reset connection must not keep its timer, and so itself, alive.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._last_words:
            return
        if self.expect is not None and data.startswith(b"POST"):
            self.expect()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._num_read = len(data) + (self._num_read if self._head_is_open else 0)
        try:
            self.parser.feed_data(data)
            if self._head_is_open:
                self._wait_for_head()
        except (httptools.HttpParserError, _HeadTooLarge):
            self.logger.warning("Invalid HTTP request received.")
            self._refuse_head(data)
        except httptools.HttpParserUpgrade as offer:
            # The parser takes what follows the head for another protocol's: read it again as what it is without offer.
            head, self.parser = self._head_without_offer(), httptools.HttpRequestParser(self)
            self.data_received(head + data[offer.args[0] :])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"twinpath.abort": {"call": self.transport.abort}}
        self._head_is_open = True
        self._num_hosts, self._codings = 0, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name == b"host":
            self._num_hosts += 1
        elif name == b"transfer-encoding":
            self._codings += b"," + value.lower()
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        self._head_is_open = False
        if self._header_timer is not None:
            self._stop_header_timer()
        if self._num_read > MAX_HEADER_BYTES or len(self.headers) > MAX_HEADERS:
            self._check_head()
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._refusal = RequestError("This server is no proxy.", status=HTTPStatus.METHOD_NOT_ALLOWED)
                raise ValueError("CONNECT")
            return
        version = self.parser.get_http_version()
        if self._num_hosts > 1 or (not self._num_hosts and version == "1.1"):
            self._refusal = RequestError("An HTTP/1.1 request has one Host header.")
            raise ValueError("host")
        if self._codings and self._codings[1:].strip() != b"chunked":
            self._refusal = RequestError(
                "Of transfer codings this server knows 'chunked' alone.", status=HTTPStatus.NOT_IMPLEMENTED
            )
            raise ValueError("transfer coding")
        self._begin_exchange(version)

    def _begin_exchange(self, version: str) -> None:
        """What uvicorn does here, without what this server has no use for."""
        target = httptools.parse_url(self.url)
        path = target.path.decode("ascii")
        scope = self.scope
        scope["http_version"] = version
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = target.path
        scope["query_string"] = target.query or b""
        before = self.cycle
        self.cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            False,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            self.keepalive and version != "1.0" and self.parser.should_keep_alive(),
            self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.pipeline.appendleft((self.cycle, self.app))
            if len(self.pipeline) >= MAX_PIPELINED:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if self.parser.should_upgrade() or cycle.response_complete:
            return
        # An app that comes after this finds the body here, and need not wait for it.
        self.scope["extensions"]["twinpath.whole_body"] = {"body": cycle.body}
        cycle.more_body = False
        cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        if cycle.scope["http_version"] == "1.0":
            app = _ended_by_close(cycle, app)
        self._answering = cycle
        task = self.loop.create_task(cycle.run_asgi(app))  # type: ignore[arg-type]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _head_without_offer(self) -> bytes:
        """The head just read, without its `Upgrade`. The JDK's client offers h2c with every first request, and offers
        may be declined in silence."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_response_complete(self) -> None:
        if self._last_words and not self.pipeline and not self.transport.is_closing():
            self._end_with(self._last_words)
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            # The last answer was never read: a close would wait for that for ever.
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _wait_for_head(self) -> None:
        """A read ended inside a head. Most come whole, and pay for no timer."""
        self._check_head()
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _check_head(self) -> None:
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if num_bytes > MAX_HEADER_BYTES or len(self.headers) > MAX_HEADERS:
            self._refusal = RequestError(
                f"The request's line and headers are larger than {MAX_HEADER_BYTES} bytes or {MAX_HEADERS} headers.",
                status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )
            # Inside the parser it becomes an HttpParserError.
            raise _HeadTooLarge

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse_head(self, data: bytes) -> None:
        """Answer the head at the end of `data`, in its turn; then close."""
        method, url, headers = unread_head(data)
        error = self._refusal or RequestError("The request is not valid HTTP/1.1.")
        if self._refusal is None and method and not self.url:
            known = "this server knows GET, HEAD, POST, DELETE and OPTIONS"
            message = f"There is no method '{method.decode()}' here: {known}."
            error = RequestError(message, status=HTTPStatus.NOT_IMPLEMENTED)
        words = refusal(error, self.url or url, [*self.headers, *headers], self.origins)
        has_cycle = self.cycle is not None and self.cycle.scope is self.scope
        waits = self._answering is not None and not self._answering.response_complete
        if has_cycle and self.pipeline:
            self.pipeline.popleft()
        if waits and (self._answering is not self.cycle or not has_cycle):
            self._last_words = words
        else:
            self._end_with(words)

    def _end_with(self, words: bytes) -> None:
        self.transport.write(words)
        self.transport.close()


def bounded_protocol(
    *, max_connections: int, keepalive: bool, origins: OriginRule, expect: Callable[[], None] | None = None
) -> type[BoundedProtocol]:
    """The protocol class with its limits: uvicorn builds one object per connection from a class alone."""
    limits = {"max_connections": max_connections, "keepalive": keepalive, "origins": origins}
    if expect is not None:
        limits["expect"] = staticmethod(expect)
    return cast(type[BoundedProtocol], type("LimitedProtocol", (BoundedProtocol,), limits))


def _ended_by_close(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """For HTTP/1.0, which knows no chunks (RFC 9112, 6.1): an answer without a length ends with its connection."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = True

        async def send_plain(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name == b"content-length" for name, _ in message.get("headers", ()))
                if not has_length:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and not has_length:
                # uvicorn compares the two.
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer


def _full(max_connections: int) -> RequestError:
    return Overloaded(f"All {max_connections} connections of this server are in use.", status=503, retry_after_s=1)
