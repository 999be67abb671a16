"""One engine as the HTTP side sees it: `generate`, and what health checks and metrics want to know."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from time import monotonic
from typing import Protocol

from twinpath.contracts import AnswerComplete, Clock
from twinpath.errors import InvalidRequest, Overloaded, RateLimit
from twinpath.gateway.holdings import Holdings
from twinpath.gateway.launcher import Launcher
from twinpath.gateway.spin import Spinner
from twinpath.gateway.supervisor import ReplicaState, Supervisor, WatchdogLimits
from twinpath.ipc.messages import Answer, Cancel, Events, Fatal, Gauges, LoadProgress, Ready, Submit
from twinpath.types import AdmittedEvent, ErrorEvent, Event, FinishEvent, Request, TokensEvent

#: A first guess of the time between two finished requests, until some have finished.
_INITIAL_INTERVAL_S = 0.25
_MAX_RETRY_AFTER_S = 60


class ReplicaLike(Protocol):
    """What api and cli may rely on."""

    @property
    def state(self) -> ReplicaState: ...
    @property
    def info(self) -> Ready | None: ...
    @property
    def gauges(self) -> Gauges: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def seconds_since_token(self) -> float | None: ...
    def generate(self, request: Request) -> AsyncIterator[Event]: ...
    async def start(self) -> None: ...
    async def drain(self, timeout_s: float) -> bool: ...
    async def stop(self) -> None: ...


class _Stream:
    """Events of one request on their way to one reader."""

    __slots__ = ("_events", "_followers", "_waiter", "complete", "ended", "started")

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._followers: list[asyncio.Future[None]] = []
        #: The first event came.
        self.started = False
        #: The terminal event came.
        self.ended = False
        #: The reader left because it has all it wanted.
        self.complete = False

    def push(self, event: Event) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Event:
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()

    async def prefilled(self) -> None:
        """Until the request has its first token, and so its prompt's KV is there; or has ended without."""
        if not (self.started or self.ended):
            follower = asyncio.get_running_loop().create_future()
            self._followers.append(follower)
            await follower

    def release_followers(self) -> None:
        for follower in self._followers:
            if not follower.done():
                follower.set_result(None)
        self._followers.clear()


class Replica:
    """Generate over one supervised engine, with a bound on how many may wait.

    Invariant: each `generate` that yields at all ends with exactly one FinishEvent or ErrorEvent, whatever the engine
    does.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        max_waiting: int = 4096,
        ready_timeout_s: float = 10.0,
        limits: WatchdogLimits | None = None,
        clock: Clock = monotonic,
        spin_s: float = 0.0,
        breathe: Callable[[], None] | None = None,
    ) -> None:
        """`spin_s`: keep the event loop awake for so long after the last request's end. `breathe`: called when a prompt
        has gone to the engine."""
        self._supervisor = Supervisor(launcher, self, limits, clock)
        self._holdings = Holdings(self._supervisor.send)
        self._max_waiting = max_waiting
        self._ready_timeout_s = ready_timeout_s
        self._clock = clock
        self._spinner = Spinner(spin_s, clock)
        self._breathe = breathe
        self._streams: dict[str, _Stream] = {}
        #: Cancelled here, terminal event not yet seen: they still hold pages.
        self._abandoned: set[str] = set()
        self._num_started = 0
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._quiet_since_s = self._finished_s = clock()
        self._finish_interval_s = _INITIAL_INTERVAL_S

    # ---------------------------------------------------------------------------------------------------- what it is

    @property
    def state(self) -> ReplicaState:
        if self._draining and self._supervisor.state is ReplicaState.READY:
            return ReplicaState.DRAINING
        return self._supervisor.state

    @property
    def info(self) -> Ready | None:
        """What the newest engine said when it became ready."""
        return self._supervisor.info

    @property
    def load(self) -> LoadProgress | None:
        return self._supervisor.load

    @property
    def failure(self) -> Fatal | None:
        return self._supervisor.failure

    @property
    def gauges(self) -> Gauges:
        """The engine's own counts, at most a heartbeat (0.5 s) old."""
        return self._supervisor.gauges

    @property
    def holdings(self) -> Holdings:
        """Sessions and pinned templates."""
        return self._holdings

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

    @property
    def pid(self) -> int | None:
        return self._supervisor.pid

    @property
    def num_running(self) -> int:
        """Requests that got their first event and not their last."""
        return self._num_started

    @property
    def num_waiting(self) -> int:
        return len(self._streams) - self._num_started

    @property
    def num_inflight(self) -> int:
        """Requests the engine may hold, cancelled ones included."""
        return len(self._streams) + len(self._abandoned)

    @property
    def seconds_since_token(self) -> float | None:
        """None when nothing is in flight; else since the last token, or since the engine stopped being idle."""
        return self._clock() - self._quiet_since_s if self._streams else None

    # ------------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Returns when ready. Raises: UserError for a wrong model or setting, EngineError otherwise."""
        await self._supervisor.start()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for those in flight; whether all ended in time."""
        self._draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End the engine; requests still in flight get an ErrorEvent. Idempotent."""
        self._draining = True
        await self._supervisor.stop()

    # -------------------------------------------------------------------------------------------------- generate

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `contracts.Generate`. Raises Overloaded (429 or 503) before its first event when it cannot be taken."""
        await self._admit(request.request_id)
        self._spinner.touch()
        stream = self._streams[request.request_id] = _Stream()
        if self._empty.is_set():
            self._empty.clear()
            self._quiet_since_s = self._clock()
        submitted = False
        try:
            if leader := self._streams.get(request.follows):
                await leader.prefilled()
            if not stream.ended:
                self._supervisor.send(Submit(request))
                submitted = True
                if self._breathe is not None:
                    self._breathe()
            while True:
                event = await stream.next()
                try:
                    yield event
                except AnswerComplete:
                    stream.complete = True
                    return
                if not isinstance(event, TokensEvent | AdmittedEvent):
                    return
        finally:
            if submitted and not stream.ended:
                self._abandon(request.request_id, stream)
            elif not stream.ended:
                self._forget(request.request_id, stream)
                self._note_if_empty()

    async def _admit(self, request_id: str) -> None:
        if self._draining:
            raise Overloaded("the server is shutting down", status=503, retry_after_s=5)
        if self._supervisor.state is not ReplicaState.READY:
            await self._wait_ready()
        if self._holdings.num_computing:
            await self._holdings.computed(self._ready_timeout_s)
        if request_id in self._streams or request_id in self._abandoned:
            raise InvalidRequest(f"request id {request_id!r} is in use")
        num_seats = self.info.max_num_seqs if self.info else 0
        if len(self._streams) >= num_seats + self._max_waiting:
            raise self._full(num_seats)

    def _full(self, num_seats: int) -> Overloaded:
        limit, info, gauges = num_seats + self._max_waiting, self.info, self.gauges
        error = Overloaded(
            f"{num_seats} requests run and {self._max_waiting} wait, which is the limit",
            retry_after_s=self._retry_after_s(),
        )
        page_size = info.page_size if info else 0
        error.rate = RateLimit(
            limit,
            max(limit - len(self._streams), 0),
            gauges.pages_total * page_size,
            (gauges.pages_total - gauges.pages_used) * page_size,
            self._finish_interval_s,
        )
        return error

    async def _wait_ready(self) -> None:
        if not await self._supervisor.wait_ready(self._ready_timeout_s):
            raise Overloaded(f"the engine is {self._supervisor.state}", status=503, retry_after_s=2)

    def _retry_after_s(self) -> int:
        """The time in which half of those who wait will have finished, at the recent pace."""
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(self.num_waiting / 2 * self._finish_interval_s)))

    def _abandon(self, request_id: str, stream: _Stream) -> None:
        self._forget(request_id, stream)
        self._abandoned.add(request_id)
        self._supervisor.send(Cancel(request_id, stream.complete))

    def _forget(self, request_id: str, stream: _Stream) -> None:
        del self._streams[request_id]
        self._num_started -= stream.started
        stream.ended = True
        stream.release_followers()

    # ---------------------------------------------------------------------------------- SupervisorListener

    def on_events(self, message: Events) -> None:
        for event in message.events:
            stream = self._streams.get(event.request_id)
            if stream is not None:
                self._deliver(stream, event)
            elif not isinstance(event, TokensEvent | AdmittedEvent):
                self._abandoned.discard(event.request_id)
        self._note_if_empty()

    def on_answer(self, message: Answer) -> None:
        self._holdings.on_answer(message)

    def on_ready(self) -> None:
        self._holdings.on_ready()

    def on_down(self, reason: str) -> None:
        self._holdings.on_down(reason)
        self._abandoned.clear()
        for request_id, stream in list(self._streams.items()):
            self._deliver(stream, ErrorEvent(request_id, reason))
        self._empty.set()

    def _note_if_empty(self) -> None:
        if not self._streams and not self._abandoned:
            self._empty.set()

    def _deliver(self, stream: _Stream, event: Event) -> None:
        if isinstance(event, TokensEvent):
            self._quiet_since_s = self._clock()
            self._spinner.touch()
            if not stream.started:
                stream.started = True
                self._num_started += 1
                stream.release_followers()
        elif not isinstance(event, AdmittedEvent):
            self._forget(event.request_id, stream)
            if isinstance(event, FinishEvent):
                self._note_finish()
        stream.push(event)

    def _note_finish(self) -> None:
        now_s = self._clock()
        if self._streams:  # Else the pace would be the clients' and not ours.
            self._finish_interval_s += 0.1 * (now_s - self._finished_s - self._finish_interval_s)
        self._finished_s = now_s
