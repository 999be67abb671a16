"""Lanes over an engine that pauses: prefill gets time instead of layers, the arithmetic done by hand.

A decode step takes 2 ms, so a period of four has 8; 15 % are in reserve at first, which leaves 4.8 ms for prefill. A
chunk of 64 rows takes 1 + 32 x 0.45 + 32 x 0.1 = 18.6 ms in all.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.stepping import Bench, make_request
from scheduler.test_lanes import LONG, SLICED
from twinpath.engine.scripted import END_ID, ScriptedEngine
from twinpath.engine.step_output import paused_result
from twinpath.scheduler import CostModel, LaneSettings, Scheduler
from twinpath.scheduler.cost import StepShape, shape_of
from twinpath.types import EngineInfo, SlotInit, StepPlan, StepResult, TokensEvent


class PausingEngine:
    """A scripted engine on the bench's clock, where a step takes what `SLICED` says and stops when its time is over.

    One that `goes_on` gives half of itself to what a plan has beside it, whose steps take 1.8 times as long.
    """

    def __init__(self, bench: Bench, inner: ScriptedEngine, goes_on: bool) -> None:
        self.info: EngineInfo = replace(inner.info, pauses=True, goes_on=goes_on)
        self.plans: list[StepPlan] = []
        self._bench, self._inner = bench, inner
        self._cost = CostModel(SLICED)
        self._left_ms: dict[int, float] = {}
        self._paused: StepPlan | None = None
        self._inits: tuple[SlotInit, ...] = ()

    def submit(self, plan: StepPlan) -> int:
        self.plans.append(plan)
        self._inits += plan.inits
        if plan.budget_ms is not None:
            assert plan.residual is not None and plan.resume == (id(plan.residual) in self._left_ms)
            whole_ms = self._cost.predict(shape_of(plan, self.info.num_layers))
            left_ms = self._left_ms.setdefault(id(plan.residual), whole_ms)
            if left_ms > plan.budget_ms:
                self._left_ms[id(plan.residual)] = left_ms - plan.budget_ms
                self._paused = plan
                return plan.step_id
        inits, self._inits = self._inits, ()
        return self._inner.submit(replace(plan, budget_ms=None, resume=False, beside=None, inits=inits))

    def poll(self) -> StepResult | None:
        plan = self.plans[-1]
        if self._paused is not None:
            self._paused, elapsed_ms = None, plan.budget_ms or 0.0
            done = 1.0 - self._left_ms[id(plan.residual)] / self._cost.predict(shape_of(plan, self.info.num_layers))
            result: StepResult | None = paused_result(plan, int(done * self.info.num_layers), elapsed_ms)
        else:
            elapsed_ms = self._left_ms.pop(id(plan.residual), 0.0) if plan.budget_ms is not None else 0.0
            elapsed_ms = elapsed_ms or self._cost.predict(shape_of(plan, self.info.num_layers))
            if plan.beside is not None:
                elapsed_ms *= 1.8
                self._left_ms[id(plan.beside)] = max(self._left_ms[id(plan.beside)] - elapsed_ms / 2, 0.01)
            result = self._inner.poll()
            assert result is not None
            result = replace(result, elapsed_ms=elapsed_ms)
        self._bench.now_s += elapsed_ms / 1e3
        return result


def bench_of(
    idle_step_ms: float = 1000.0, itl_budget: float = 4.0, goes_on: bool = False
) -> tuple[Bench, PausingEngine]:
    lanes = LaneSettings(flex_threshold_tokens=100, itl_budget=itl_budget, idle_step_ms=idle_step_ms)
    bench = Bench(LONG, lanes=lanes, step_tokens=64, layers=10, num_pages=64)
    engine = PausingEngine(bench, bench.engine, goes_on)
    bench.engine = engine  # type: ignore[assignment]
    limits = bench.scheduler.limits
    bench.scheduler = Scheduler(engine.info, limits, clock=lambda: bench.now_s, cost=CostModel(SLICED))
    return bench, engine


def streaming(bench: Bench) -> None:
    bench.add(make_request("stream", "stream", max_tokens=200))
    for _ in range(6):
        bench.turn()


def promised(bench: Bench, num_prompt: int) -> tuple[float | None, float]:
    """Of a long prompt beside a stream: the promise of its first token, and when that came, in milliseconds."""
    streaming(bench)
    begin_s = bench.now_s
    bench.add(make_request("long", b"x" * num_prompt))
    while not bench.told["long"]:
        bench.turn()
    [promise] = [event.promise for event in bench.told["long"] if isinstance(event, TokensEvent)]
    assert promise is not None
    return promise.predicted_ttft_ms, (bench.now_s - begin_s) * 1e3


def budgets(plans: list[StepPlan]) -> list[float | None]:
    return [plan.budget_ms for plan in plans]


def test_a_chunk_gets_what_a_period_leaves_and_goes_on_after_each_token() -> None:
    bench, engine = bench_of()
    streaming(bench)
    bench.add(make_request("long", b"x" * 150))
    before = len(engine.plans)
    for _ in range(9):
        bench.turn()
    plans = engine.plans[before:]
    slices, steps = [plans[i] for i in (0, 2, 4, 6)], [plans[i] for i in (1, 3, 5, 8)]
    assert budgets(slices) == pytest.approx([4.8] * 4, rel=0.02)
    assert [plan.resume for plan in slices] == [False, True, True, True]
    assert all((plan.layer_begin, plan.layer_end) == (0, 10) and plan.residual is slices[0].residual for plan in slices)
    assert budgets(steps) == [None] * 4 and all(plan.slots.tolist() == [0] for plan in steps)
    # About 4 ms were left of the chunk: the next one begins in what is left of that period.
    first, second, third, fourth = (plan.budget_ms or 0.0 for plan in slices)
    left_ms = 18.6 - first - second - third
    assert plans[7].budget_ms == pytest.approx(fourth - left_ms, abs=0.02) and not plans[7].resume
    bench.run()
    assert bench.tokens("long") == [*b"ok", END_ID] and bench.tokens("stream") == list(b"abcdefghij" * 20)


@pytest.mark.parametrize("num_prompt", [40, 150, 700])
def test_a_promise_counts_slices_by_their_time(num_prompt: int) -> None:
    """Beside a stream a slice gets 1.4 ms, and one layer of a chunk takes 1.8."""
    bench, _ = bench_of(itl_budget=2.0)
    predicted_ms, actual_ms = promised(bench, num_prompt)
    assert predicted_ms == pytest.approx(actual_ms, rel=0.05)


def test_a_paused_chunk_goes_on_beside_the_decode_steps() -> None:
    bench, engine = bench_of(goes_on=True)
    streaming(bench)
    assert all(plan.beside is None for plan in engine.plans)
    bench.add(make_request("long", b"x" * 150))
    before = len(engine.plans)
    for _ in range(5):
        bench.turn()
    slices, steps = engine.plans[before::2], engine.plans[before + 1 :: 2]
    # Steps take 3.6 ms now, so that 3.2 of 6.8 are left for a slice.
    assert budgets(slices[:2]) == pytest.approx([3.2, 3.2], rel=0.02)
    assert all(plan.beside is slices[0].residual for plan in steps)
    bench.run()
    assert bench.tokens("long") == [*b"ok", END_ID] and bench.tokens("stream") == list(b"abcdefghij" * 20)
    assert all(plan.beside is None or plan.budget_ms is None for plan in engine.plans)


@pytest.mark.parametrize("num_prompt", [150, 700])
def test_a_promise_counts_what_goes_on(num_prompt: int) -> None:
    bench, _ = bench_of(goes_on=True)
    predicted_ms, actual_ms = promised(bench, num_prompt)
    assert predicted_ms == pytest.approx(actual_ms, rel=0.1)


def test_what_went_on_says_nothing_of_a_chunks_cost() -> None:
    bench, _ = bench_of(goes_on=True)
    streaming(bench)
    whole = StepShape(num_prefill=64)
    before_ms = bench.scheduler.cost.predict(whole)
    bench.add(make_request("long", b"x" * 150))
    bench.run()
    assert bench.scheduler.cost.predict(whole) == pytest.approx(before_ms)


def test_late_tokens_make_the_slices_shorter() -> None:
    """Each decode step takes 5 ms longer than anybody predicted."""
    bench, engine = bench_of()
    streaming(bench)
    bench.add(make_request("long", b"x" * 700))
    found = []
    for _ in range(60):
        bench.turn()
        if engine.plans[-1].budget_ms is None:
            bench.now_s += 5e-3
        else:
            found.append(engine.plans[-1].budget_ms)
    assert found[0] == pytest.approx(4.8, rel=0.02)
    # No more than half of the 8 ms is ever held back.
    assert max(found[-5:]) == pytest.approx(2.0, rel=0.03)


def test_without_streams_a_slice_is_bounded_for_those_who_may_arrive() -> None:
    bench, engine = bench_of(idle_step_ms=12.0)
    bench.add(make_request("long", b"x" * 60))
    bench.turn()
    bench.turn()
    assert budgets(engine.plans) == [12.0, 12.0] and [plan.resume for plan in engine.plans] == [False, True]
    assert bench.tokens("long") == list(b"o")


def test_a_fast_request_overtakes_a_paused_flex_chunk() -> None:
    bench, engine = bench_of()
    streaming(bench)
    bench.add(make_request("long", b"x" * 150))
    bench.turn()
    bench.add(make_request("fast", b"y" * 64))
    before = len(engine.plans)
    while not bench.told["fast"]:
        bench.turn()
    sliced = [plan for plan in engine.plans[before:] if plan.budget_ms is not None]
    assert len(sliced) >= 4 and all(plan.slots.tolist() == [2] for plan in sliced)
    assert bench.told["long"] == []
    bench.run()
    assert bench.tokens("fast") == bench.tokens("long") == [*b"ok", END_ID]


def test_whoever_leaves_a_paused_chunk_leaves_nothing() -> None:
    bench, engine = bench_of()
    streaming(bench)
    bench.add(make_request("long", b"x" * 150), make_request("next", b"z" * 150))
    bench.turn()
    assert engine.plans[-1].budget_ms is not None
    bench.cancel("long")
    bench.run()
    assert bench.tokens("next") == [*b"ok", END_ID] and bench.tokens("stream") == list(b"abcdefghij" * 20)
    assert bench.scheduler.num_running == 0


def test_a_chunk_is_measured_as_a_whole() -> None:
    bench, _ = bench_of()
    streaming(bench)
    cost = bench.scheduler.cost
    cost.kept = []
    bench.add(make_request("long", b"x" * 128))
    while not bench.told["long"]:
        bench.turn()
    chunks = [(shape.num_prefill, shape.layer_share, ms) for shape, ms in cost.kept if not shape.num_decode]
    assert chunks == [(64, 1.0, pytest.approx(18.6)), (64, 1.0, pytest.approx(18.6))]
