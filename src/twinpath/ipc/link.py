"""The gateway's end of a channel: an asyncio protocol that calls a handler for each message."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from twinpath.ipc.codec import FrameError, gateway_codec
from twinpath.ipc.messages import ToEngine, ToGateway


class LinkHandler(Protocol):
    """Who gets what the engine says. Called in the event loop's thread."""

    def on_message(self, message: ToGateway) -> None: ...

    def on_closed(self, reason: str) -> None:
        """Last call, once: end of stream, a broken frame, or `close`."""
        ...


class Link(Protocol):
    """What the gateway needs of a channel. Never blocks: the transport buffers."""

    def send(self, message: ToEngine) -> None:
        """Dropped silently when the link is closed: `on_closed` tells."""
        ...

    def close(self) -> None: ...


class _SocketLink(asyncio.Protocol):
    def __init__(self, handler: LinkHandler) -> None:
        self._handler = handler
        self._codec = gateway_codec()
        self._transport: asyncio.Transport | None = None
        self._reason = "end of stream"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._codec.feed(data):
                self._handler.on_message(message)
        except FrameError as error:
            self._reason = str(error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._handler.on_closed(str(exc) if exc else self._reason)

    def send(self, message: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._codec.encode(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect_link(connection: socket.socket, handler: LinkHandler) -> Link:
    """A link over a connected AF_UNIX stream socket, which it owns from now on."""
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: _SocketLink(handler), sock=connection)
    return link
