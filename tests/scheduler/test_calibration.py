"""Calibration: real steps of every kind, a fitted model, and nothing left behind."""

from __future__ import annotations

from scheduler.stepping import Bench
from twinpath.scheduler import Coefficients, CostModel, LaneSettings, StepShape
from twinpath.scheduler.calibration import calibrate
from twinpath.types import Request, StepPlan, StepResult

LAW = CostModel(Coefficients(0.2, 3.0, 0.4, 0.9, 0.9, 1e-4, 1e-4, 0.3))


def test_a_calibrated_model_knows_the_engine_and_the_scheduler_is_as_new() -> None:
    """The engine says it took what a law says; the model that was fitted to 20 steps says the same of others."""
    cost = CostModel()
    bench = Bench(
        lanes=LaneSettings(), cost=cost, step_tokens=256, num_pages=64, max_model_len=1024, vocab_size=512, depth=1
    )
    shapes: list[StepShape] = []
    poll = bench.engine.poll

    def timed(timeout_s: float | None = None) -> StepResult | None:
        shapes.append(bench.scheduler._outstanding[0].shape)
        result = poll(timeout_s)
        assert result is not None
        return StepResult(result.step_id, result.counts, result.tokens, elapsed_ms=LAW.predict(shapes[-1]))

    bench.engine.poll = timed  # type: ignore[method-assign]

    def answer(requests: list[Request]) -> None:
        bench.add(*requests)
        bench.run()

    calibrate(bench.scheduler, answer)
    plans: list[StepPlan] = bench.engine.plans
    assert any(plan.lengths.max() == 256 for plan in plans) and any(len(plan.slots) == 4 for plan in plans)
    for shape in (StepShape(2, 400, num_sampled=2), StepShape(num_prefill=100, prefill_context=9000, num_sampled=1)):
        assert abs(cost.predict(shape) / LAW.predict(shape) - 1) < 0.15
    assert cost.kept is None and not bench.scheduler.lanes_paused
    assert bench.scheduler.pool.num_used == bench.scheduler.num_running == bench.scheduler.num_waiting == 0


def test_a_tiny_window_is_calibrated_with_what_fits() -> None:
    bench = Bench(lanes=LaneSettings(), max_model_len=16, num_pages=4, page_size=4, step_tokens=8, max_num_seqs=2)

    def answer(requests: list[Request]) -> None:
        bench.add(*requests)
        bench.run()
        assert all(bench.finish(request.request_id).usage.completion_tokens > 0 for request in requests)

    calibrate(bench.scheduler, answer)
