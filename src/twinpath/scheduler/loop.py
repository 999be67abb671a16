"""The engine process's main loop: inbox -> plan -> submit -> poll -> commit -> events out."""

from __future__ import annotations

import contextlib
import gc
from typing import Protocol

from twinpath.contracts import Constraints, Engine
from twinpath.errors import EngineError
from twinpath.ipc import Channel, ChannelClosed
from twinpath.ipc.messages import Answer, Cancel, Drain, Events, Gauges, Heartbeat, Submit, ToEngine
from twinpath.scheduler.calibration import calibrate, warm_up_request
from twinpath.scheduler.gauges import deadline_gauges, memory_gauges
from twinpath.scheduler.grammars import GrammarQueue
from twinpath.scheduler.holdings import Holdings
from twinpath.scheduler.inbox import Inbox
from twinpath.scheduler.rehearsal import Rehearsal
from twinpath.scheduler.scheduler import Scheduler
from twinpath.types import ErrorEvent, Event, Request, StepResult

#: Idle this long: the engine gets ready for what is next, in short pieces. An agent's next turn may come soon.
_PREPARE_AFTER_IDLE_S = 0.005
#: Idle so much longer: garbage is collected now, when nobody waits for a token.
_COLLECT_AFTER_IDLE_S = 0.045
#: Prefill rows from which a step can be worth interrupting ...
_LONG_STEP_TOKENS = 16
#: ... and what it takes when somebody listens meanwhile: the thread costs a first token 0.07 ms.
_LONG_STEP_MS = 50.0
_WARM_UP_TOKENS = 24


class Beat(Protocol):
    """Who wants to know when the loop works."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class EngineLoop:
    """Drives one engine for one gateway. `run` blocks in its thread.

    During a long step the inbox has a thread of its own, which sees a cancellation and interrupts the step when it
    mostly serves the cancelled request. A loop that spins needs none: it looks at the engine and into the channel in
    turn, so that nobody waits for the interpreter or for a thread to wake.
    """

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        channel: Channel,
        *,
        owns_process: bool = True,
        constraints: Constraints | None = None,
        spins: bool = False,
    ) -> None:
        """`spins`: never sleep while a step runs; for engines that work beside the processor, whose `poll(0)` is
        short."""
        self._engine = engine
        self._scheduler = scheduler
        self._channel = channel
        self._holdings = Holdings(scheduler)
        #: Garbage collection is process-wide: only the owner of the process may switch it off.
        self._owns_process = owns_process
        self._spins = spins
        self._grammars = GrammarQueue(scheduler, constraints, channel.wake)
        self._inbox = Inbox(channel, self._interrupt_for, self._interrupt_all)
        self._interruptible: tuple[tuple[str, int], ...] = ()
        #: Of the plan made last, and those from which a step runs so long that somebody listens meanwhile.
        self._num_planned_tokens, self._num_watched_tokens = 0, _LONG_STEP_TOKENS
        self._num_turns = 0
        self._closing = False
        self._rehearsal = Rehearsal(engine.info, scheduler.limits)
        #: Told whenever the loop begins to work and to wait, if anybody wants to know.
        self.beat: Beat | None = None

    def run(self) -> None:
        """Serve until the gateway says Drain or goes away. An exception of the engine passes: the engine is lost."""
        if self._owns_process:
            gc.collect()
            gc.freeze()
            gc.disable()
        with contextlib.suppress(ChannelClosed):
            while not self._closing:
                self._turn()

    def warm_up(self) -> None:
        """Real requests through the same plan, submit, poll and commit, before anybody waits: one to see that the
        engine works, and with lanes a few that show what steps cost.

        Raises: EngineError when it fails: an engine that cannot say one token is not ready.
        """
        num_prompt = max(1, min(_WARM_UP_TOKENS, self._scheduler.window_tokens - 2))
        self._run([warm_up_request(0, num_prompt, 2)])
        if self._scheduler.limits.lanes is not None:
            calibrate(self._scheduler, self._run)
        self._scheduler.memory.forget_prefixes()

    def _run(self, requests: list[Request]) -> None:
        """Run requests to their end, before the inbox is read."""
        events = [event for request in requests for event in self._scheduler.add(request)]
        while self._scheduler.num_running or self._scheduler.num_waiting:
            self._fill_engine()
            result = self._engine.poll()
            events += self._scheduler.commit(result) if result else []
        for event in events:
            if isinstance(event, ErrorEvent):
                raise EngineError(f"the first forward failed: {event.message}")

    def rehearse(self) -> None:
        """A request is coming: called where somebody waits for messages, the loop or its second thread."""
        if not self._scheduler.num_outstanding:
            self._rehearsal.run()

    def heartbeat(self) -> Heartbeat:
        """What the watchdog wants to know; called from the heartbeat thread."""
        gauges = self.gauges()
        busy = gauges.running + gauges.waiting > 0 or self._scheduler.num_outstanding > 0
        return Heartbeat(busy, self._num_turns + self._engine.progress(), gauges)

    def gauges(self) -> Gauges:
        scheduler = self._scheduler
        return Gauges(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            pages_total=scheduler.pool.num_pages,
            pages_used=scheduler.pool.num_used,
            pages_cached=scheduler.pool.num_idle,
            prefix_queries=scheduler.prefix.num_queried_tokens,
            prefix_hits=scheduler.prefix.num_hit_tokens,
            preemptions=scheduler.num_preemptions,
            steps=scheduler.num_steps,
            deadlines=deadline_gauges(scheduler),
            grammars=self._grammars.gauges(),
            memory=memory_gauges(scheduler.memory),
        )

    def _turn(self) -> None:
        self._num_turns += 1
        self._take_inbox()
        self._send(self._grammars.ready())
        if (admission := self._scheduler.admission) is not None:
            self._send(admission.shed_late())
        self._fill_engine()
        if not self._scheduler.num_outstanding:
            self._rest()
            return
        if self._inbox.is_watched:
            self._take_inbox()  # A cancellation read before its step could be interrupted is served here.
        if self.beat is not None:
            self.beat.end()
        result = self._spin() if self._spins else self._engine.poll()
        if self.beat is not None:
            self.beat.begin()
        if result is not None:
            # A template is pinned when its request settles, and whoever waits for it is told that it is.
            self._send(self._scheduler.commit(result, settle=self._holdings.num_pending > 0))
            self._scheduler.settle()
            self._note_pace(result)

    def _spin(self) -> StepResult | None:
        """The next result; None when a message came first, which may change what runs next."""
        while (result := self._engine.poll(0.0)) is None:
            if self._grammars.has_ready or self._take_inbox():
                return None
        return result

    def _fill_engine(self) -> None:
        while self._scheduler.num_outstanding < self._engine.info.depth:
            plan = self._scheduler.plan()
            if plan is None:
                return
            num_tokens = self._num_planned_tokens = len(plan.tokens)
            if num_tokens >= _LONG_STEP_TOKENS:
                self._interruptible = self._scheduler.interruptible()
                if not self._spins and num_tokens >= self._num_watched_tokens:
                    self._inbox.watch()
            self._engine.submit(plan)
            self._scheduler.fill_masks()

    def _note_pace(self, result: StepResult) -> None:
        if result.elapsed_ms and not result.interrupted and self._num_planned_tokens >= _LONG_STEP_TOKENS:
            num_tokens = int(self._num_planned_tokens * _LONG_STEP_MS / result.elapsed_ms)
            self._num_watched_tokens = max(num_tokens, _LONG_STEP_TOKENS)

    def _take_inbox(self) -> bool:
        """Handle what came; whether anything did."""
        found = False
        while (message := self._inbox.take()) is not None:
            self._handle(message)
            found = True
        return found

    def _rest(self) -> None:
        """Wait for the next message; nothing is planned or outstanding."""
        if self._closing:
            return
        message = self._rest_usefully() if self._owns_process else self._wait_for_message()
        if message is not None:
            self._handle(message)

    def _rest_usefully(self) -> ToEngine | None:
        """The next message; None when there is something else to do."""
        for pause_s, duty in ((_PREPARE_AFTER_IDLE_S, self._prepare), (_COLLECT_AFTER_IDLE_S, self._tidy)):
            message = self._wait(pause_s)
            if message is None and not self._grammars.has_ready:
                message = duty()
            if message is not None or self._grammars.has_ready:
                return message
        return self._wait_for_message()

    def _tidy(self) -> None:
        gc.collect()

    def _prepare(self) -> ToEngine | None:
        """Let the engine get ready until a message comes."""
        self._rehearsal.end()
        message = None
        while message is None and self._engine.prepare():
            message = self._inbox.take()
        return message

    def _wait_for_message(self) -> ToEngine | None:
        """However long it takes; None when a session expired meanwhile, or somebody woke us."""
        return self._wait(self._scheduler.memory.expire_sessions())

    def _wait(self, timeout_s: float | None) -> ToEngine | None:
        if self.beat is not None:
            self.beat.end()
        self._grammars.is_resting = True
        message = None if self._grammars.has_ready else self._inbox.wait(timeout_s)
        self._grammars.is_resting = False
        if self.beat is not None:
            self.beat.begin()
        return message

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._send(self._grammars.add(message.request))
            case Cancel(request_id, complete):
                self._interrupt_for(request_id)
                if complete:
                    self._scheduler.roster.note_complete(request_id)
                self._send(self._grammars.cancel(request_id))
            case Drain():
                self._closing = True
            case _:
                self._answer(*self._holdings.handle(message))

    def _send(self, events: list[Event]) -> None:
        if not events:
            return
        if self._holdings.num_pending:
            events, answers = self._holdings.sift(events)
            self._answer(*answers)
        if events:
            self._channel.send(Events(events))

    def _answer(self, *answers: Answer) -> None:
        for answer in answers:
            self._channel.send(answer)

    def _interrupt_for(self, request_id: str) -> None:
        for dominant_id, step_id in self._interruptible:
            if dominant_id == request_id:
                self._engine.interrupt(step_id)

    def _interrupt_all(self) -> None:
        for _, step_id in self._interruptible:
            self._engine.interrupt(step_id)
