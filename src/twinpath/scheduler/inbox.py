"""The loop's ear: what the gateway says, read without a hop between threads unless a long step runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock, Thread

from twinpath.ipc import Channel, ChannelClosed, FrameError
from twinpath.ipc.messages import Cancel, ToEngine


class Inbox:
    """Messages in their order. `take`, `wait` and `watch` are the loop's.

    The loop reads the channel itself between steps and while it rests: a message that wakes another thread first is
    0.1 ms later. While a step runs that is worth interrupting, a second thread reads and looks at what comes.
    """

    def __init__(self, channel: Channel, on_cancel: Callable[[str], None], on_closed: Callable[[], None]) -> None:
        """`on_cancel(request_id)` and `on_closed()` are called by the second thread, when they come during a watch."""
        self._channel = channel
        self._on_cancel = on_cancel
        self._on_closed = on_closed
        #: Read by the second thread, for the loop; None: the gateway is gone.
        self._kept: deque[ToEngine | None] = deque()
        self._watching = False
        #: Anyone may wake the channel; only this says that the second thread is to stop reading.
        self._must_park = False
        #: Held until there is something to begin, and until it is over: a lock costs a tenth of a `Semaphore`.
        self._begin, self._parked = Lock(), Lock()
        self._begin.acquire()
        self._parked.acquire()
        self._thread: Thread | None = None

    @property
    def is_watched(self) -> bool:
        """The second thread reads, from `watch` to the next `wait`."""
        return self._watching

    def take(self) -> ToEngine | None:
        """What is there now. Raises: ChannelClosed."""
        if self._kept:
            return self._pop()
        return None if self._watching else self._read(0.0)

    def wait(self, timeout_s: float | None = None) -> ToEngine | None:
        """The next message, None after the timeout. Raises: ChannelClosed."""
        if self._watching:
            self._must_park = True
            self._channel.wake()
            self._parked.acquire()
            self._watching = self._must_park = False
        return self._pop() if self._kept else self._read(timeout_s)

    def watch(self) -> None:
        """Let the second thread read, until the next `wait`."""
        if self._watching:
            return
        if self._thread is None:
            self._thread = Thread(target=self._watch_all, name="inbox", daemon=True)
            self._thread.start()
        self._watching = True
        self._begin.release()

    def _pop(self) -> ToEngine:
        message = self._kept.popleft()
        if message is None:
            raise ChannelClosed("closed while a step ran")
        return message

    def _read(self, timeout_s: float | None) -> ToEngine | None:
        try:
            return self._channel.receive(timeout_s)
        except FrameError as error:
            raise ChannelClosed(str(error)) from None

    def _watch_all(self) -> None:
        try:
            while True:
                self._begin.acquire()
                while (message := self._channel.receive()) is not None or not self._must_park:
                    if message is None:
                        continue
                    self._kept.append(message)
                    if isinstance(message, Cancel):
                        self._on_cancel(message.request_id)
                self._parked.release()
        except (ChannelClosed, FrameError):
            self._kept.append(None)
            self._on_closed()
            self._parked.release()
