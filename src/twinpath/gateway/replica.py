"""One engine as the HTTP side sees it: `generate`, and what health checks and metrics want to know."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Protocol

from twinpath.contracts import Clock
from twinpath.errors import InvalidRequest, Overloaded, RateLimit
from twinpath.gateway.generation import Generation
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


class Replica:
    """Generate over one supervised engine, with a bound on how many may wait.

    Invariant: each generation that yields at all ends with exactly one FinishEvent or ErrorEvent, whatever the engine
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
        self._spinner = Spinner(spin_s, clock) if spin_s else None
        self._breathe = breathe
        self._streams: dict[str, Generation] = {}
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

    def generate(self, request: Request) -> Generation:
        """See `contracts.Generate`. Raises Overloaded (429 or 503) before its first event when it cannot be taken."""
        return Generation(request, self)

    async def begin(self, generation: Generation) -> None:
        """Takes its request in, and sends it to the engine."""
        if self._draining or self._supervisor.state is not ReplicaState.READY or self._holdings.num_computing:
            await self._wait_for_engine()
        request = generation.request
        request_id, num_streams = request.request_id, len(self._streams)
        if request_id in self._streams or request_id in self._abandoned:
            raise InvalidRequest(f"request id {request_id!r} is in use")
        if num_streams >= self._max_waiting and num_streams >= self._num_seats + self._max_waiting:
            raise self._full(self._num_seats)
        if self._spinner is not None:
            self._spinner.touch()
        self._streams[request_id] = generation
        if self._empty.is_set():
            self._empty.clear()
            self._quiet_since_s = self._clock()
        if request.follows and (leader := self._streams.get(request.follows)):
            await leader.prefilled()
        if not generation.ended:
            self._supervisor.send(Submit(request))
            generation.submitted = True
            if self._breathe is not None:
                self._breathe()

    def expect(self) -> None:
        """A request is being read: an engine that sleeps is woken meanwhile."""
        if not self._streams:
            self._supervisor.ring()

    def leave(self, generation: Generation) -> None:
        """Cancels its request; nothing when that has ended."""
        request_id = generation.request.request_id
        if generation.ended or self._streams.get(request_id) is not generation:
            return
        self._forget(request_id, generation)
        if generation.submitted:
            self._abandoned.add(request_id)
            self._supervisor.send(Cancel(request_id, generation.complete))
        else:
            self._note_if_empty()

    async def _wait_for_engine(self) -> None:
        if self._draining:
            raise Overloaded("the server is shutting down", status=503, retry_after_s=5)
        if not await self._supervisor.wait_ready(self._ready_timeout_s):
            raise Overloaded(f"the engine is {self._supervisor.state}", status=503, retry_after_s=2)
        if self._holdings.num_computing:
            await self._holdings.computed(self._ready_timeout_s)

    @property
    def _num_seats(self) -> int:
        return self.info.max_num_seqs if self.info else 0

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

    def _retry_after_s(self) -> int:
        """The time in which half of those who wait will have finished, at the recent pace."""
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(self.num_waiting / 2 * self._finish_interval_s)))

    def _forget(self, request_id: str, stream: Generation) -> None:
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
        if not self._streams:
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

    def _deliver(self, stream: Generation, event: Event) -> None:
        if isinstance(event, TokensEvent):
            self._quiet_since_s = self._clock()
            if self._spinner is not None:
                self._spinner.touch()
            if not stream.started:
                stream.started = True
                self._num_started += 1
                if stream.followers:
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
