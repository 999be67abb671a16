"""Server-sent events with little work per token: everything that does not change is encoded once per request."""

from __future__ import annotations

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


class EventStream:
    """The body of one SSE response. Headers go out with the first event: what fails before it is a plain HTTP error.

    While a request waits longer than the keep-alive time it has been admitted: the comment line then opens the stream.
    """

    def __init__(self, client: ClientWatch, preamble: bytes) -> None:
        self._client = client
        self._preamble = preamble
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
        """Last chunks, then [DONE], then the end of the body."""
        if not self.started:
            await self.open()
        self._client.keep_alive_with(None)
        await self._client.send(
            {"type": "http.response.body", "body": self._preamble + chunk + DONE, "more_body": False}
        )

    async def fail(self, error: RequestError) -> None:
        """One error event ends a started stream; no [DONE] and no finish_reason, so nobody takes it for an answer."""
        self._client.keep_alive_with(None)
        chunk = b"data: " + envelope(error) + b"\n\n"
        await self._client.send({"type": "http.response.body", "body": chunk, "more_body": False})

    async def open(self) -> None:
        """Send the headers: the request is running."""
        self.started = True
        await self._client.send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})

    async def _comment(self) -> None:
        if not self.started:
            await self.open()
        await self._client.send({"type": "http.response.body", "body": COMMENT, "more_body": True})
