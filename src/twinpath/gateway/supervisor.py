"""Keeps one engine alive: starts it, listens to its pulse, ends it when it hangs, starts the next one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Protocol

from twinpath.contracts import Clock
from twinpath.errors import EngineError, UserError
from twinpath.gateway.launcher import EngineHandle, Launcher
from twinpath.ipc.messages import Answer, Events, Fatal, Gauges, Heartbeat, LoadProgress, Ready, ToEngine, ToGateway

logger = logging.getLogger(__name__)


class ReplicaState(StrEnum):
    """Where an engine is in its life, as its users see it."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """When an engine counts as gone, and how eagerly the next one is started. A fault is noticed within 5 s."""

    #: No message at all, though the pulse beats every 0.5 s: stopped, or swapped to death.
    silent_s: float = 3.0
    #: The same before Ready: importing and mapping hold the interpreter's lock for long.
    loading_silent_s: float = 60.0
    #: Busy, beating, and not one layer or loop turn done.
    stuck_s: float = 3.5
    check_s: float = 0.2
    #: A life shorter than this counts as a fast failure; from the second in a row on the restart waits.
    fast_failure_s: float = 10.0
    backoff_s: float = 0.25
    max_backoff_s: float = 5.0
    #: Starts in a row that never became ready before we give up.
    max_failed_starts: int = 5
    stop_timeout_s: float = 5.0


class SupervisorListener(Protocol):
    """Who uses the engine. Called in the event loop's thread."""

    def on_events(self, message: Events) -> None: ...

    def on_answer(self, message: Answer) -> None: ...

    def on_ready(self) -> None:
        """A new engine listens; nothing was sent to it yet."""
        ...

    def on_down(self, reason: str) -> None:
        """The engine is gone, and with it every request it held."""
        ...


class _Life:
    """One engine from launch to end: what it said, and when. A dead engine's late words end here."""

    def __init__(self, supervisor: Supervisor, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self.started_s = self.heard_s = self.progress_s = clock()
        self.ready = False
        self.busy = False
        self.progress = -1
        self.fatal: Fatal | None = None
        self.closed = asyncio.Event()

    def on_message(self, message: ToGateway) -> None:
        self.heard_s = self._clock()
        if isinstance(message, Events):
            self.progress_s = self.heard_s
            self._supervisor.take_events(self, message)
            return
        match message:
            case Heartbeat(busy, progress, _):
                if not busy or progress != self.progress:
                    self.progress_s = self.heard_s
                self.busy, self.progress = busy, progress
            case Ready():
                self.ready = True
                self.progress_s = self.heard_s
            case Fatal():
                self.fatal = message
        self._supervisor.take(self, message)

    def on_closed(self, reason: str) -> None:
        self.closed.set()

    def forgive(self, late_s: float) -> None:
        """Our own process slept: do not blame the engine for words that wait in the socket."""
        self.heard_s += late_s
        self.progress_s += late_s

    def fault(self, limits: WatchdogLimits) -> str | None:
        now_s = self._clock()
        silent_s = limits.silent_s if self.ready else limits.loading_silent_s
        if now_s - self.heard_s > silent_s:
            return f"it was silent for {now_s - self.heard_s:.1f} s"
        if self.ready and self.busy and now_s - self.progress_s > limits.stuck_s:
            return f"it made no progress for {now_s - self.progress_s:.1f} s"
        return None


class Supervisor:
    """Runs engines of one launcher one after another, from `start` to `stop`.

    Attributes for the outside: state, info (Ready of the newest engine), load, failure, gauges, num_restarts, pid.
    """

    def __init__(
        self,
        launcher: Launcher,
        listener: SupervisorListener,
        limits: WatchdogLimits | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._launcher = launcher
        self._listener = listener
        self._limits = limits or WatchdogLimits()
        self._clock = clock
        self._handle: EngineHandle | None = None
        self._life: _Life | None = None
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self.state = ReplicaState.LOADING
        self.info: Ready | None = None
        self.load: LoadProgress | None = None
        self.failure: Fatal | None = None
        self.gauges = Gauges()
        self.num_restarts = 0

    @property
    def pid(self) -> int | None:
        return self._handle.pid if self._handle else None

    async def start(self) -> None:
        """Launch and wait until ready. Raises: UserError or EngineError with the engine's own one-line reason."""
        self._task = asyncio.create_task(self._supervise(), name="supervisor")
        await self._settled.wait()
        if self.failure is not None and self.state is ReplicaState.FAILED:
            raise (UserError if self.failure.user_error else EngineError)(self.failure.message)

    async def stop(self) -> None:
        """End the engine, politely first. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.stop(self._limits.stop_timeout_s)
            self._listener.on_down("the server is shutting down")
        self._set_state(ReplicaState.STOPPED)

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait while the engine loads or restarts; whether it is ready then."""
        if self.state is not ReplicaState.READY:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), timeout_s)
        return self.state is ReplicaState.READY

    def send(self, message: ToEngine) -> None:
        if self._handle is not None:
            self._handle.send(message)

    def ring(self) -> None:
        """See `EngineHandle`."""
        if self._handle is not None:
            self._handle.ring()

    def take_events(self, life: _Life, message: Events) -> None:
        """As `take`, for what comes with every token."""
        if life is self._life:
            self._listener.on_events(message)

    def take(self, life: _Life, message: ToGateway) -> None:
        """A message of the engine, passed on by its `_Life`."""
        if life is not self._life:
            return
        match message:
            case Answer():
                self._listener.on_answer(message)
            case Heartbeat():
                self.gauges = message.gauges
            case LoadProgress():
                self.load = message
            case Ready():
                self.info = message
                self._listener.on_ready()
                self._set_state(ReplicaState.READY)
            case Fatal() if life.ready:  # Its end follows; what arrives until then waits for the next engine.
                self._set_state(ReplicaState.RESTARTING)

    async def _supervise(self) -> None:
        num_fast_failures = num_failed_starts = 0
        while True:
            reason, life = await self._live()
            num_failed_starts = 0 if life.ready else num_failed_starts + 1
            is_first = self.info is None
            if life.fatal is not None and not life.ready:
                self.failure = life.fatal
            if num_failed_starts >= (1 if is_first else self._limits.max_failed_starts):
                self.failure = self.failure or Fatal(f"the engine did not start: {reason}")
                if not is_first:  # Else `start` raises it.
                    logger.error("giving up on the engine: %s", self.failure.message)
                self._set_state(ReplicaState.FAILED)
                return
            self.num_restarts += 1
            is_fast = self._clock() - life.started_s < self._limits.fast_failure_s
            num_fast_failures = num_fast_failures + 1 if is_fast else 0
            await asyncio.sleep(self._backoff_s(num_fast_failures))

    async def _live(self) -> tuple[str, _Life]:
        """One engine's life; returns why it ended, once it is certainly gone and its requests are told."""
        life = self._life = _Life(self, self._clock)
        try:
            self._handle = await self._launcher.launch(life)
        except Exception as error:  # Whatever it is (no descriptors, no memory): the next attempt may do better.
            life.fatal = Fatal(str(error) or type(error).__name__)
            return life.fatal.message, life
        fault = await self._watch(life)
        if self.state is ReplicaState.READY:
            self._set_state(ReplicaState.RESTARTING)
        self._life = None
        ending = await self._handle.kill()
        self._handle = None
        self.gauges = Gauges()
        reason = f"{fault} ({ending})"
        if life.ready:
            logger.error("the engine is gone: %s; starting it again", reason)
        self._listener.on_down(f"the engine failed while it held this request: {reason}")
        return reason, life

    async def _watch(self, life: _Life) -> str:
        check_s = self._limits.check_s
        while True:
            before_s = self._clock()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(life.closed.wait(), check_s)
                return life.fatal.message if life.fatal else "its process ended"
            late_s = self._clock() - before_s - check_s
            if late_s > check_s:
                life.forgive(late_s)
            if (fault := life.fault(self._limits)) is not None:
                return fault

    def _backoff_s(self, num_fast_failures: int) -> float:
        if num_fast_failures < 2:
            return 0.0
        return float(min(self._limits.backoff_s * 2 ** (num_fast_failures - 2), self._limits.max_backoff_s))

    def _set_state(self, state: ReplicaState) -> None:
        self.state = state
        if state in (ReplicaState.LOADING, ReplicaState.RESTARTING):
            self._settled.clear()
        else:
            self._settled.set()
