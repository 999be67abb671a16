"""The engine's end of a channel: blocking, used by a reader thread, the step loop and the heartbeat thread at once."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Protocol

from twinpath.ipc.codec import engine_codec
from twinpath.ipc.messages import ToEngine, ToGateway

_READ_BYTES = 256 * 1024
#: Room for some seconds of events, so that a gateway that is busy elsewhere does not stop the step loop.
_SOCKET_BUFFER_BYTES = 1024 * 1024
#: How long a message that was announced is waited for without sleep.
_COMING_S = 0.001


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel(Protocol):
    """What the engine process needs of a channel. `send` and `wake` may be called from any thread, `receive` from one
    at a time."""

    def send(self, message: ToGateway) -> None:
        """Raises: ChannelClosed when the gateway is gone."""
        ...

    def receive(self, timeout_s: float | None = None) -> ToEngine | None:
        """Wait for the next message; None after the timeout (0: only what is there) or `wake`.

        Raises: ChannelClosed on end of stream, FrameError on a broken one.
        """
        ...

    def wake(self) -> None:
        """The `receive` that waits, else the next one that would, returns None."""
        ...

    def close(self) -> None: ...


class SocketChannel:
    """A Channel over a connected stream socket, which it owns.

    `bell`: an eventfd that rings when a message will come soon. `on_bell` is called where `receive` waits; then the
    message is waited for without sleep for a while.
    """

    def __init__(self, connection: socket.socket, bell: int | None = None) -> None:
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        #: A `receive` that waits looks for so long without sleeping: a sleeper is woken late, and runs cold.
        self.spin_s = 0.0
        self.on_bell: Callable[[], None] | None = None
        self._connection = connection
        self._bell = bell
        self._codec = engine_codec()
        self._send_lock = Lock()
        self._received: deque[ToEngine] = deque()
        # One for all reads: `recv` would take and give back as much memory each time.
        self._incoming = memoryview(bytearray(_READ_BYTES))
        self._wake_read, self._wake_write = os.pipe()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        if bell is not None:
            self._poll.register(bell, select.POLLIN)

    def send(self, message: ToGateway) -> None:
        with self._send_lock:
            frame = self._codec.encode(message)
            try:
                self._connection.sendall(frame)
            except OSError as error:
                raise ChannelClosed(str(error)) from None

    def receive(self, timeout_s: float | None = None) -> ToEngine | None:
        while not self._received:
            try:
                num_bytes = self._connection.recv_into(self._incoming, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if timeout_s == 0.0 or not self._wait(timeout_s):
                    return None
                continue
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not num_bytes:
                raise ChannelClosed("end of stream")
            self._received.extend(self._codec.feed(self._incoming[:num_bytes]))
        return self._received.popleft()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"w")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        descriptors = (self._wake_read, self._wake_write, self._bell)
        self._wake_read, self._wake_write, self._bell = -1, -1, None
        for descriptor in descriptors:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _wait(self, timeout_s: float | None) -> bool:
        """Until there is something to read; False after the timeout or `wake`."""
        ready = self._look(self.spin_s, timeout_s)
        if self._bell is not None and (self._bell, select.POLLIN) in ready:
            os.eventfd_read(self._bell)
            if self.on_bell is not None:
                self.on_bell()
            ready = self._look(_COMING_S, timeout_s)
        for descriptor, _ in ready:
            if descriptor == self._wake_read:
                os.read(self._wake_read, 1)
                return False
        return bool(ready)

    def _look(self, spin_s: float, timeout_s: float | None) -> list[tuple[int, int]]:
        """What is ready, for `spin_s` without sleep."""
        if spin_s:
            end_s = monotonic() + (spin_s if timeout_s is None else min(spin_s, timeout_s))
            while monotonic() < end_s:
                if ready := self._poll.poll(0):
                    return ready
        return self._poll.poll(None if timeout_s is None else timeout_s * 1e3)
