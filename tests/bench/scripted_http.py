"""A raw asyncio server whose every write the test decides, and a clock that moves only when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class StepClock:
    """Reads return `now`; a reader can be awaited, so a server moves the clock only after the client has stamped."""

    def __init__(self) -> None:
        self.now = 0.0
        self._read = asyncio.Event()

    def __call__(self) -> float:
        self._read.set()
        return self.now

    async def write_at(self, now: float, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Set the time, write `data`, and return when the client has read the clock for it."""
        self.now = now
        self._read.clear()
        writer.write(data)
        await self._read.wait()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(payload: str) -> bytes:
    return f"data: {payload}\n\n".encode()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request's body; raises IncompleteReadError when the client closes instead."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return await reader.readexactly(length)


def plain(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """The base URL of a server that hands each connection to `handler`."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()
