"""The other end of one exchange: who leaves is noticed, silence is filled with keep-alives, who stalls is dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from time import monotonic
from types import TracebackType
from typing import Self

from starlette.types import Message, Receive, Send

from twinpath.api.body import ClientGone

Beat = Callable[[], Awaitable[None]]
#: What is not needed before the first event begins so much later: the request has gone to the engine by then, which may
#: have to wait for this loop's core.
AFTER_SUBMIT_S = 0.002


class ClientWatch:
    """`async with ClientWatch(...) as client:` ends its body with ClientGone when the client leaves or stalls.

    One task per request does all the watching; a token costs no task and no timer. Enter it once the body is read.
    """

    def __init__(self, receive: Receive, send: Send, *, keepalive_s: float, write_timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._keepalive_s = keepalive_s
        self._write_timeout_s = write_timeout_s
        self._writing_since: float | None = None
        self._last_write = monotonic()
        self._beat: Beat | None = None
        self._gone = ""
        self._owner: asyncio.Task[object] | None = None
        self._start: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._works: list[Callable[[], object]] = []

    @property
    def gone(self) -> bool:
        """The client left or stalled: the body is being cancelled because of it."""
        return bool(self._gone)

    def keep_alive_with(self, beat: Beat | None) -> None:
        """Call `beat` whenever nothing was written for the keep-alive time (streams only)."""
        self._beat = beat

    def later(self, work: Callable[[], object]) -> None:
        """Call `work` when the request has gone to the engine."""
        self._works.append(work)

    async def send(self, message: Message) -> None:
        """Send one ASGI message; waits while the client's buffer is full."""
        self._last_write = self._writing_since = monotonic()
        await self._send(message)
        self._writing_since = None

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        self._start = asyncio.get_running_loop().call_later(AFTER_SUBMIT_S, self._begin)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._start is not None and self._owner is not None
        self._start.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._gone:
            return
        if exc_type is None:
            # The cancel was sent while the body ended: it is still to be delivered, and must not hit the caller.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        self._owner.uncancel()
        if exc_type is None or issubclass(exc_type, asyncio.CancelledError):
            raise ClientGone(self._gone) from None

    def _begin(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        for work in self._works:
            work()

    async def _watch(self) -> None:
        tick_s = min(self._keepalive_s / 2, self._write_timeout_s / 4)
        while True:
            try:
                async with asyncio.timeout(tick_s):
                    message = await self._receive()
            except TimeoutError:
                if not await self._tick():
                    return
                continue
            if message["type"] == "http.disconnect":
                self._cancel("disconnect")
                return

    async def _tick(self) -> bool:
        now = monotonic()
        if self._writing_since is not None:
            if now - self._writing_since >= self._write_timeout_s:
                self._cancel("slow reader")
                return False
        elif self._beat is not None and now - self._last_write >= self._keepalive_s:
            try:
                async with asyncio.timeout(self._write_timeout_s):
                    await self._beat()
            except TimeoutError:
                self._cancel("slow reader")
                return False
        return True

    def _cancel(self, reason: str) -> None:
        assert self._owner is not None
        self._gone = reason
        self._owner.cancel()
