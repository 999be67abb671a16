"""The channel's in-process twin: the same frames through queues, the engine in a thread of this process."""

from __future__ import annotations

import asyncio
from queue import Empty, SimpleQueue
from threading import Lock

from twinpath.ipc.channel import ChannelClosed
from twinpath.ipc.codec import engine_codec, gateway_codec
from twinpath.ipc.link import LinkHandler
from twinpath.ipc.messages import ToEngine, ToGateway

#: No message is an empty frame.
_WAKE = b""


class LocalChannel:
    """The engine's end. Messages pass the codec, so that what cannot cross a process border fails here too."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: LinkHandler) -> None:
        self._loop = loop
        self._handler = handler
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._codec = engine_codec()
        self._gateway_codec = gateway_codec()
        self._lock = Lock()
        self._closed = False

    def send(self, message: ToGateway) -> None:
        with self._lock:
            if self._closed:
                raise ChannelClosed("closed")
            for arrived in self._gateway_codec.feed(self._codec.encode(message)):
                self._post(arrived)

    def receive(self, timeout_s: float | None = None) -> ToEngine | None:
        try:
            frame = self._frames.get(timeout_s != 0.0, timeout_s or None)
        except Empty:
            return None
        if frame is None:
            raise ChannelClosed("closed")
        if not frame:
            return self.receive(0.0) if timeout_s == 0.0 else None
        (message,) = self._codec.feed(frame)
        return message

    def wake(self) -> None:
        self._frames.put(_WAKE)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._frames.put(None)
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._handler.on_closed, "closed")

    def put_frame(self, frame: bytes) -> None:
        self._frames.put(frame)

    def _post(self, message: ToGateway) -> None:
        if self._loop.is_closed():
            raise ChannelClosed("the event loop is closed")
        self._loop.call_soon_threadsafe(self._handler.on_message, message)


class LocalLink:
    """The gateway's end."""

    def __init__(self, channel: LocalChannel) -> None:
        self._channel = channel
        self._codec = gateway_codec()

    def send(self, message: ToEngine) -> None:
        self._channel.put_frame(self._codec.encode(message))

    def close(self) -> None:
        self._channel.close()


def local_pair(handler: LinkHandler) -> tuple[LocalLink, LocalChannel]:
    """Both ends; call it in the event loop whose thread `handler` is to run in."""
    channel = LocalChannel(asyncio.get_running_loop(), handler)
    return LocalLink(channel), channel
