"""Drives a scheduler over the scripted engine by hand, one verb at a time, and keeps what each request was told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from twinpath.engine.scripted import END_ID, Script, ScriptedEngine, ScriptedShape, ScriptFile
from twinpath.scheduler import CostModel, LaneSettings, MemorySettings, Scheduler, SchedulerLimits, make_policy
from twinpath.types import AdmittedEvent, ErrorEvent, Event, FinishEvent, Request, SamplingParams, TokensEvent

SERVICE_FIELDS = {"ttft_target_ms", "tpot_target_ms", "weight", "priority", "arrival_s"}
SERVICE_FIELDS |= {"session", "session_name", "tenant"}


def make_request(request_id: str, prompt: bytes | str, max_tokens: int = 64, **settings: object) -> Request:
    """Greedy, ended by END_ID; `cache_salt` and sampling fields by name."""
    salt = str(settings.pop("cache_salt", ""))
    service = {name: settings.pop(name) for name in SERVICE_FIELDS & settings.keys()}
    stops = settings.pop("stop_token_ids", (END_ID,))
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=stops, **settings)  # type: ignore[arg-type]
    prompt_ids = list(prompt.encode() if isinstance(prompt, str) else prompt)
    return Request(request_id=request_id, prompt_ids=prompt_ids, sampling=sampling, cache_salt=salt, **service)  # type: ignore[arg-type]


class Bench:
    """Scheduler and engine; `told` maps request id to its events."""

    def __init__(
        self,
        *scripts: Script,
        max_num_seqs: int = 8,
        step_tokens: int = 64,
        memory: MemorySettings = MemorySettings(),  # noqa: B008 (frozen)
        lanes: LaneSettings | None = None,
        cost: CostModel | None = None,
        policy: str = "fcfs",
        **shape: object,
    ) -> None:
        script = ScriptFile(scripts=scripts, engine=ScriptedShape(**shape))  # type: ignore[arg-type]
        self.engine = ScriptedEngine(script, keep_plans=True)
        limits = SchedulerLimits(max_num_seqs, step_tokens, memory, lanes)
        self.now_s = 0.0
        self.scheduler = Scheduler(
            self.engine.info, limits, make_policy(policy), clock=lambda: self.now_s, cost=cost or CostModel()
        )
        self.told: dict[str, list[Event]] = defaultdict(list)
        #: Long walks check the scheduler once a step, after its commit.
        self.checks_plans = True
        #: Sees events first, and may keep some.
        self.on_events: Callable[[list[Event]], list[Event]] = lambda events: events

    def add(self, *requests: Request) -> None:
        for request in requests:
            self._note(self.scheduler.add(request))

    def cancel(self, request_id: str) -> None:
        self._note(self.scheduler.cancel(request_id))

    def submit(self) -> bool:
        """Plan and submit one step; False when there is nothing to plan."""
        plan = self.scheduler.plan()
        if self.checks_plans:
            self.scheduler.check_integrity()
        if plan is not None:
            self.engine.submit(plan)
        return plan is not None

    def collect(self) -> None:
        """Poll and commit the oldest step."""
        result = self.engine.poll()
        assert result is not None
        self._note(self.scheduler.commit(result))
        self.scheduler.check_integrity()

    def turn(self) -> bool:
        """Fill the engine's depth, then commit one step; False when all is quiet."""
        while self.scheduler.num_outstanding < self.engine.info.depth and self.submit():
            pass
        if not self.scheduler.num_outstanding:
            return False
        self.collect()
        return True

    def run(self, max_turns: int = 10_000) -> None:
        for _ in range(max_turns):
            if not self.turn():
                return
        raise AssertionError(f"not quiet after {max_turns} turns")

    def tokens(self, request_id: str) -> list[int]:
        return [token for event in self.told[request_id] if isinstance(event, TokensEvent) for token in event.token_ids]

    def end(self, request_id: str) -> FinishEvent | ErrorEvent:
        """The terminal event: exactly one, and last."""
        events = self.told[request_id]
        terminal = [event for event in events if not isinstance(event, TokensEvent | AdmittedEvent)]
        assert len(terminal) == 1 and events[-1] is terminal[0], events
        return terminal[0]

    def finish(self, request_id: str) -> FinishEvent:
        event = self.end(request_id)
        assert isinstance(event, FinishEvent), event
        return event

    def _note(self, events: list[Event]) -> None:
        for event in self.on_events(events):
            self.told[event.request_id].append(event)
