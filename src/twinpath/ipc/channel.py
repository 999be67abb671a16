"""The engine's end of a channel: blocking, used by a reader thread, the step loop and the heartbeat thread at once."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from threading import Lock
from typing import Protocol

from twinpath.ipc.codec import engine_codec
from twinpath.ipc.messages import ToEngine, ToGateway

_READ_BYTES = 256 * 1024
#: Room for some seconds of events, so that a gateway that is busy elsewhere does not stop the step loop.
_SOCKET_BUFFER_BYTES = 1024 * 1024


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel(Protocol):
    """What the engine process needs of a channel. `send` may be called from any thread, `receive` from one."""

    def send(self, message: ToGateway) -> None:
        """Raises: ChannelClosed when the gateway is gone."""
        ...

    def receive(self) -> ToEngine:
        """Wait for the next message. Raises: ChannelClosed on end of stream, FrameError on a broken one."""
        ...

    def close(self) -> None: ...


class SocketChannel:
    """A Channel over a connected stream socket, which it owns."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        self._connection = connection
        self._codec = engine_codec()
        self._send_lock = Lock()
        self._received: deque[ToEngine] = deque()

    def send(self, message: ToGateway) -> None:
        with self._send_lock:
            frame = self._codec.encode(message)
            try:
                self._connection.sendall(frame)
            except OSError as error:
                raise ChannelClosed(str(error)) from None

    def receive(self) -> ToEngine:
        while not self._received:
            try:
                data = self._connection.recv(_READ_BYTES)
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not data:
                raise ChannelClosed("end of stream")
            self._received.extend(self._codec.feed(data))
        return self._received.popleft()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
