"""Server-sent events with little work per token: everything that does not change is encoded once per request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from twinpath.api.client_watch import ClientWatch
from twinpath.api.envelope import Headers, envelope
from twinpath.errors import RequestError

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encoder = msgspec.json.Encoder()


def quoted(text: str) -> bytes:
    """The text as a JSON string."""
    return _encoder.encode(text)


def encode(payload: object) -> bytes:
    """Any struct as JSON."""
    return _encoder.encode(payload)


def error_chunk(error: RequestError) -> bytes:
    """The event that ends a started stream of OpenAI's first two endpoints."""
    return b"data: " + envelope(error) + b"\n\n"


def event(name: bytes, data: bytes) -> bytes:
    """An event with a name, as the younger APIs have them."""
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


@dataclass(frozen=True, slots=True)
class Manners:
    """How one API's streams end well, end badly, and stay alive."""

    done: bytes = DONE
    failed: Callable[[RequestError], bytes] = error_chunk
    keep_alive: bytes = COMMENT


OPENAI_MANNERS = Manners()


class EventStream:
    """The body of one SSE response. Headers go out with the first event: what fails before it is a plain HTTP error.

    While a request waits longer than the keep-alive time it has been admitted: the comment line then opens the stream.
    """

    def __init__(self, client: ClientWatch, preamble: bytes, manners: Manners = OPENAI_MANNERS) -> None:
        self._client = client
        self._preamble = preamble
        self._manners = manners
        self.started = False
        client.keep_alive_with(self._comment)

    @property
    def client_gone(self) -> bool:
        return self._client.gone

    async def write(self, chunk: bytes) -> None:
        if not self.started:
            await self.open()
        if self._preamble:
            chunk, self._preamble = self._preamble + chunk, b""
        await self._client.send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes) -> None:
        """Last chunks, then what ends a good stream ([DONE]), then the end of the body."""
        if not self.started:
            await self.open()
        self._client.keep_alive_with(None)
        await self._client.send(
            {"type": "http.response.body", "body": self._preamble + chunk + self._manners.done, "more_body": False}
        )

    async def fail(self, error: RequestError) -> None:
        """One error event ends a started stream; no [DONE] and no finish_reason, so nobody takes it for an answer."""
        self._client.keep_alive_with(None)
        chunk = self._manners.failed(error)
        await self._client.send({"type": "http.response.body", "body": chunk, "more_body": False})

    async def open(self) -> None:
        """Send the headers: the request is running."""
        self.started = True
        await self._client.send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})

    async def _comment(self) -> None:
        if not self.started:
            await self.open()
        await self._client.send({"type": "http.response.body", "body": self._manners.keep_alive, "more_body": True})
