"""The real scheduler over the real engines: prefix cache, preemption, cancels and overrun change nobody's answer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from engine.engines import NUM_PAGES, POISON, SAMPLED, alone
from engine.step_driver import RESULT_TIMEOUT_S, Driver
from twinpath.ipc.messages import PinnedPrompt, PinTemplate
from twinpath.scheduler import (
    Coefficients,
    CostModel,
    LaneSettings,
    MemorySettings,
    Scheduler,
    SchedulerLimits,
    StepShape,
)
from twinpath.scheduler.holdings import Holdings
from twinpath.types import ErrorEvent, Event, FinishEvent, FinishReason, Request, SamplingParams, TokensEvent

NUM_TOKENS = 12
#: A few rows cost what many do, so that chunks go in slices of one layer; with `MIXING` rows ride with decode rows.
SLICING = Coefficients(0.0, 0.5, 0.5, 1.0, 0.01, 0.0, 0.0, 0.0, knee_rows=16)
LANES = {
    "slices": LaneSettings(flex_threshold_tokens=40, itl_budget=9.0, idle_step_ms=6.0),
    "mixed": LaneSettings(flex_threshold_tokens=40, itl_budget=7.0, idle_step_ms=5.0),
}


class FixedCost(CostModel):
    """Learns nothing: the plans of a test are the same on every machine."""

    def observe(self, shape: StepShape, elapsed_ms: float) -> None: ...


class Bench:
    """A scheduler and the events it told about each request."""

    def __init__(
        self,
        driver: Driver,
        step_tokens: int,
        prefix_caching: bool = True,
        num_pages: int = NUM_PAGES,
        lanes: LaneSettings | None = None,
    ) -> None:
        self.engine = driver.engine
        info = replace(self.engine.info, num_pages=num_pages)
        limits = SchedulerLimits(info.max_slots, step_tokens, MemorySettings(prefix_caching), lanes)
        self.scheduler = Scheduler(info, limits, cost=FixedCost(SLICING))
        self.num_slices = self.num_mixed = 0
        self.told: dict[str, list[Event]] = defaultdict(list)

    def note(self, events: list[Event]) -> None:
        for event in events:
            self.told[event.request_id].append(event)

    def turn(self) -> bool:
        """Submit up to the engine's depth, then commit the oldest step; False when all is quiet."""
        while self.scheduler.num_outstanding < self.engine.info.depth:
            plan = self.scheduler.plan()
            if plan is None:
                break
            # Layers, or time, for an engine that stops by the clock.
            self.num_slices += plan.layer_begin > 0 or plan.budget_ms is not None
            self.num_mixed += len(plan.slots) > 1 and int(plan.lengths.min()) == 1 < int(plan.lengths.max())
            self.engine.submit(plan)
        if not self.scheduler.num_outstanding:
            return False
        result = self.engine.poll(RESULT_TIMEOUT_S)
        assert result is not None, "no result: the engine hangs"
        self.note(self.scheduler.commit(result))
        self.scheduler.check_integrity()
        return True

    def finish(self) -> None:
        for _ in range(5000):
            if not self.turn():
                return
        pytest.fail("not quiet after 5000 steps")

    def tokens(self, request_id: str) -> list[int]:
        events = self.told[request_id]
        return [token for event in events if isinstance(event, TokensEvent) for token in event.token_ids]


def requests(rng: np.random.Generator, count: int, num_tokens: int = NUM_TOKENS) -> list[Request]:
    """Half begin alike, half are sampled with penalties; some stop at a token that a greedy answer may well contain."""
    shared = rng.integers(3, POISON, 40).tolist()
    made = []
    for i in range(count):
        own = rng.integers(3, POISON, int(rng.integers(1, 30))).tolist()
        settings = {**SAMPLED, "seed": i} if i % 3 == 1 else {"temperature": 0.0}
        sampling = SamplingParams(max_tokens=num_tokens, logit_bias={POISON: -1000.0}, **settings)  # type: ignore[arg-type]
        made.append(Request(request_id=f"r{i}", prompt_ids=shared[: 40 * (i % 2)] + own, sampling=sampling))
    return made


def settings_of(request: Request) -> dict[str, object]:
    return {name: getattr(request.sampling, name) for name in ("temperature", *SAMPLED)}


@pytest.mark.parametrize("step_tokens", [16, 128])
@pytest.mark.parametrize("prefix_caching", [True, False], ids=["cache", "no-cache"])
def test_everybody_is_answered_as_if_alone(driver: Driver, step_tokens: int, prefix_caching: bool) -> None:
    rng = np.random.default_rng(5)
    wanted = requests(rng, 14)
    right = {r.request_id: alone(driver, r.prompt_ids, NUM_TOKENS, **settings_of(r)) for r in wanted}
    bench = Bench(driver, step_tokens, prefix_caching)
    waiting = list(wanted)
    while waiting:  # They come while others run.
        bench.note(bench.scheduler.add(waiting.pop(0)))
        for _ in range(int(rng.integers(0, 5))):
            bench.turn()
    bench.finish()
    assert {name: bench.tokens(name) for name in right} == right
    for request in wanted:
        end = bench.told[request.request_id][-1]
        assert isinstance(end, FinishEvent) and end.reason == FinishReason.LENGTH
    assert (
        any(e.cached_tokens for r in wanted for e in bench.told[r.request_id] if isinstance(e, TokensEvent))
        == prefix_caching
    )


@pytest.mark.parametrize("lanes", LANES)
def test_slices_and_mixed_rows_answer_as_whole_prefills_do(driver: Driver, lanes: str) -> None:
    """Prompts of two to three chunks beside streams; among those sampled with penalties one token off shows."""
    rng = np.random.default_rng(15)
    wanted = requests(rng, 14)
    right = {r.request_id: alone(driver, r.prompt_ids, NUM_TOKENS, **settings_of(r)) for r in wanted}
    bench = Bench(driver, 24, lanes=LANES[lanes])
    waiting = list(wanted)
    while waiting:
        bench.note(bench.scheduler.add(waiting.pop(0)))
        for _ in range(int(rng.integers(0, 9))):
            bench.turn()
        if rng.random() < 0.3:  # Somebody leaves, perhaps between two slices.
            bench.note(bench.scheduler.add(replace_id(wanted[0], f"gone{len(waiting)}")))
            bench.turn()
            bench.note(bench.scheduler.cancel(f"gone{len(waiting)}"))
    bench.finish()
    assert {name: bench.tokens(name) for name in right} == right
    assert bench.num_slices if lanes == "slices" else bench.num_mixed


def replace_id(request: Request, request_id: str) -> Request:
    return Request(request_id=request_id, prompt_ids=[7, *request.prompt_ids, *range(3, 40)], sampling=request.sampling)


def test_preemption_changes_no_answer(driver: Driver) -> None:
    """Answers outgrow the pages that were there when they began: the scheduler takes pages back and computes again."""
    rng = np.random.default_rng(8)
    wanted = requests(rng, 8, num_tokens=60)
    right = {r.request_id: alone(driver, r.prompt_ids, 60, **settings_of(r)) for r in wanted}
    bench = Bench(driver, 48, num_pages=10)
    for request in wanted:
        bench.note(bench.scheduler.add(request))
    bench.finish()
    assert bench.scheduler.num_preemptions > 0
    assert {name: bench.tokens(name) for name in right} == right


@pytest.mark.parametrize("lanes", [None, "slices"])
def test_sessions_and_templates_under_pressure_change_no_answer(driver: Driver, lanes: str | None) -> None:
    """A pinned beginning, three sessions with a second turn each, and too few pages for all of them."""
    rng = np.random.default_rng(21)
    first = requests(rng, 10, num_tokens=24)
    right = {r.request_id: alone(driver, r.prompt_ids, 24, **settings_of(r)) for r in first}
    second = [
        Request(
            request_id=f"again {r.request_id}",
            prompt_ids=[*r.prompt_ids, *right[r.request_id], *rng.integers(3, POISON, 9).tolist()],
            sampling=r.sampling,
        )
        for r in first
    ]
    right |= {r.request_id: alone(driver, r.prompt_ids, 24, **settings_of(r)) for r in second}
    bench = Bench(driver, 24, num_pages=16, lanes=LANES[lanes] if lanes else None)
    beginning = PinnedPrompt("t", first[1].prompt_ids[:40], shared=True)
    assert not Holdings(bench.scheduler).handle(PinTemplate(1, beginning))
    bench.finish()
    memory = bench.scheduler.memory
    assert memory.pool.num_pinned == 40 // bench.engine.info.page_size
    for turns in (first, second):
        for index, request in enumerate(turns):
            session = f"s{index % 3}" if index % 4 else ""
            bench.note(bench.scheduler.add(msgspec.structs.replace(request, session=session)))
            for _ in range(int(rng.integers(0, 4))):
                bench.turn()
        bench.finish()
    assert {name: bench.tokens(name) for name in right} == right
    [template] = memory.templates.all()
    assert bench.scheduler.num_preemptions > 0 and template.num_hits > 0
    assert memory.pool.num_kept > 0 and memory.pool.num_used == 0


def test_stops_and_cancels_leave_the_others_alone(driver: Driver) -> None:
    rng = np.random.default_rng(6)
    wanted = requests(rng, 9)
    right = {r.request_id: alone(driver, r.prompt_ids, NUM_TOKENS, **settings_of(r)) for r in wanted}
    bench = Bench(driver, 64)
    stops: dict[str, int] = {}
    for i, request in enumerate(wanted):
        if i % 3 == 0:  # Stops at its third token (or where that one came up before): the engine has run past it.
            token = right[request.request_id][2]
            stops[request.request_id] = right[request.request_id].index(token) + 1
            sampling = SamplingParams(
                max_tokens=NUM_TOKENS,
                stop_token_ids=(token,),
                logit_bias={POISON: -1000.0},
                **settings_of(request),  # type: ignore[arg-type]
            )
            request = Request(request_id=request.request_id, prompt_ids=request.prompt_ids, sampling=sampling)
        bench.note(bench.scheduler.add(request))
    cancelled = {"r1", "r5"}
    for turn in range(6):
        bench.turn()
        if turn in (1, 4):
            bench.note(bench.scheduler.cancel(sorted(cancelled)[turn // 3]))
    bench.finish()
    for name, tokens in right.items():
        if name in cancelled:
            assert bench.tokens(name) == tokens[: len(bench.tokens(name))]
        else:
            assert bench.tokens(name) == tokens[: stops.get(name, NUM_TOKENS)]


def test_a_poisoned_request_fails_alone_and_its_pages_are_used_again(driver: Driver) -> None:
    rng = np.random.default_rng(7)
    wanted = requests(rng, 8)
    right = {r.request_id: alone(driver, r.prompt_ids, NUM_TOKENS, **settings_of(r)) for r in wanted}
    bench = Bench(driver, 64)
    greedy = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
    for i, request in enumerate(wanted):
        bench.note(bench.scheduler.add(Request(request_id=f"bad{i}", prompt_ids=[5, POISON, 7 + i], sampling=greedy)))
        bench.note(bench.scheduler.add(request))
        bench.turn()
    bench.finish()
    for i in range(len(wanted)):
        assert [type(event) for event in bench.told[f"bad{i}"]] == [ErrorEvent]
    assert {name: bench.tokens(name) for name in right} == right
