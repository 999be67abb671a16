"""A rollout says what the scheduler then does, when steps take what the cost model says and nobody comes later."""

from __future__ import annotations

import random

import pytest

from scheduler.stepping import Bench, make_request
from twinpath.engine.scripted import Script
from twinpath.scheduler import Coefficients, CostModel, LaneSettings
from twinpath.scheduler.cost import StepShape, shape_of
from twinpath.scheduler.rollout import work_ms
from twinpath.scheduler.step import Step
from twinpath.types import Promise, TokensEvent

#: Few rows are dear: prefill goes in slices. Or weights are: rows ride along.
COSTS = {
    "slices": Coefficients(0.1, 1.0, 1.0, 0.45, 0.1, 1e-3, 1e-4, 0.2),
    "mixed": Coefficients(0.5, 10.0, 0.1, 0.1, 0.1, 1e-3, 1e-4, 0.1),
}


class Timed(Bench):
    """Time passes as the model says."""

    def __init__(self, cost: Coefficients, policy: str, max_num_seqs: int = 8) -> None:
        super().__init__(
            Script(match="x", text="abcdefghij" * 30),
            lanes=LaneSettings(flex_threshold_tokens=100, itl_budget=3.0),
            cost=CostModel(cost),
            policy=policy,
            max_num_seqs=max_num_seqs,
            layers=10,
            num_pages=400,
        )
        self.first_s: dict[str, float] = {}

    def collect(self) -> None:
        plan = self.engine.plans[-1]
        self.now_s += self.scheduler.cost.predict(shape_of(plan, 10)) / 1e3
        super().collect()
        for request_id, events in self.told.items():
            if request_id not in self.first_s and any(isinstance(event, TokensEvent) for event in events):
                self.first_s[request_id] = self.now_s

    def expect(self, request_id: str, num_prompt: int, num_tokens: int) -> float:
        """Add a request; when the rollout sees its first token."""
        scheduler = self.scheduler
        self.add(make_request(request_id, b"x" * num_prompt, max_tokens=num_tokens, cache_salt=request_id))
        assert scheduler.admission is not None
        ahead_ms = scheduler.admission.outlook.first_token_ms(scheduler.roster.sequences[request_id], self.now_s)
        return self.now_s + ahead_ms / 1e3


@pytest.mark.parametrize("policy", ["fcfs", "twinpath"])
@pytest.mark.parametrize("cost", COSTS)
def test_the_last_arrival_comes_when_it_was_said(cost: str, policy: str) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        bench = Timed(COSTS[cost], policy)
        for index in range(rng.randint(0, 3)):
            bench.expect(f"stream {index}", rng.randint(1, 40), rng.randint(20, 200))
            for _ in range(rng.randint(0, 12)):
                bench.turn()
        for index in range(rng.randint(0, 3)):
            bench.expect(f"ahead {index}", rng.randint(5, 90), rng.randint(1, 20))
            for _ in range(rng.randint(0, 2)):
                bench.turn()
        expected_s = bench.expect("last", rng.randint(9, 90), 4)
        bench.run()
        assert bench.first_s["last"] == pytest.approx(expected_s, rel=1e-3), seed


def test_a_long_prompt_is_carried_on_at_the_rate_that_was_found() -> None:
    bench = Timed(COSTS["slices"], "twinpath")
    bench.expect("stream", 10, 300)
    bench.turn()
    expected_s = bench.expect("long", 1500, 1)
    bench.run()
    assert bench.first_s["long"] == pytest.approx(expected_s, rel=0.15)


def test_who_waits_behind_a_full_house_is_told_so() -> None:
    """One slot, taken for 100 more tokens: those must end first."""
    bench = Timed(COSTS["slices"], "fcfs", max_num_seqs=1)
    bench.expect("stream", 10, 101)
    bench.turn()
    expected_s = bench.expect("next", 20, 1)
    bench.run()
    assert expected_s > 100 * 2e-3
    assert bench.first_s["next"] == pytest.approx(expected_s, rel=1e-2)


def test_a_crowd_ahead_counts_though_it_is_not_played_through() -> None:
    bench = Timed(COSTS["mixed"], "fcfs", max_num_seqs=8)
    for index in range(60):
        bench.expect(f"ahead {index}", 60, 1)
    expected_s = bench.expect("last", 60, 1)
    bench.run()
    assert bench.first_s["last"] == pytest.approx(expected_s, rel=0.1)


def test_work_is_the_same_however_it_is_cut() -> None:
    cost = CostModel(COSTS["slices"])
    assert work_ms(cost, 0, 300) == pytest.approx(work_ms(cost, 0, 113) + work_ms(cost, 113, 187))


def test_a_promise_is_what_the_rollout_says() -> None:
    bench = Timed(COSTS["slices"], "twinpath")
    expected_s = bench.expect("only", 64, 1)
    bench.run()
    [promise] = [event.promise for event in bench.told["only"] if isinstance(event, TokensEvent)]
    assert isinstance(promise, Promise) and promise.predicted_ttft_ms == pytest.approx(expected_s * 1e3)


def test_time_between_steps_is_seen_and_counts_for_each_step_to_come() -> None:
    bench = Timed(COSTS["slices"], "twinpath")
    bench.expect("stream", 10, 300)
    assert bench.scheduler.admission is not None
    outlook = bench.scheduler.admission.outlook
    before_s = bench.expect("last", 80, 1) - bench.now_s
    for index in range(400):
        step = Step(index, [], (), 0, 10, shape=StepShape(1, 100), planned_s=1.0 + index * 0.0034)
        outlook.note_step(step, 3.0)
    assert outlook.gap_ms == pytest.approx(0.4, rel=0.01)
    outlook.note_step(Step(400, [], (), 0, 10, shape=StepShape(1, 100), planned_s=9.0), 3.0)
    assert outlook.gap_ms == pytest.approx(0.4, rel=0.01), "a rest is no gap"
    after_s = outlook.first_token_ms(bench.scheduler.roster.sequences["last"], bench.now_s) / 1e3
    num_steps = round((after_s - before_s) / 0.0004)
    assert num_steps > 1 and after_s - before_s == pytest.approx(num_steps * 0.0004, rel=0.02)
