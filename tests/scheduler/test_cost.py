"""The cost model: finds the law it was shown, follows a machine that changes, is not moved by single outliers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinpath.scheduler.cost import CPU_PRIOR, Coefficients, CostModel, StepShape, prefill_context, shape_of
from twinpath.types import StepPlan

LAW = Coefficients(0.2, 5.0, 0.5, 1.2, 0.8, 3e-4, 2e-4, 0.4, knee_rows=32)


def shapes(rng: np.random.Generator, count: int) -> list[StepShape]:
    found = []
    for _ in range(count):
        decode, prefill = int(rng.integers(0, 5)), int(rng.choice([0, 1, 8, 64, 256]))
        context = decode * int(rng.integers(1, 4000))
        start = int(rng.integers(0, 4000))
        share = float(rng.choice([1.0, 0.1, 0.4]))
        found.append(StepShape(decode, context, prefill, prefill_context(start, prefill), decode, share))
    return found


def by_hand(shape: StepShape) -> float:
    rows = 5.0 + 0.5 * shape.num_decode + 3e-4 * shape.decode_context
    rows += 1.2 * min(shape.num_prefill, 32) + 0.8 * max(shape.num_prefill - 32, 0) + 2e-4 * shape.prefill_context
    return 0.2 + shape.layer_share * rows + 0.4 * shape.num_sampled


def test_predict_is_the_law_written_out() -> None:
    model = CostModel(LAW)
    for shape in shapes(np.random.default_rng(0), 50):
        assert model.predict(shape) == pytest.approx(by_hand(shape))


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_fit_finds_the_law_behind_noisy_steps(scale: float) -> None:
    rng = np.random.default_rng(1)
    model = CostModel(replace(CPU_PRIOR, knee_rows=32))
    model.fit([(shape, scale * by_hand(shape) * float(rng.normal(1, 0.03))) for shape in shapes(rng, 200)])
    assert all(value >= 0 for value in model.to_dict().values())
    for shape in shapes(rng, 50):
        assert model.predict(shape) == pytest.approx(scale * by_hand(shape), rel=0.08)


def test_disturbed_steps_do_not_move_a_fit() -> None:
    rng = np.random.default_rng(2)
    model = CostModel(replace(CPU_PRIOR, knee_rows=32))
    model.fit([(shape, by_hand(shape) * (4 if n % 5 == 0 else 1)) for n, shape in enumerate(shapes(rng, 200))])
    for shape in shapes(rng, 50):
        assert model.predict(shape) == pytest.approx(by_hand(shape), rel=0.08)


def test_what_was_not_measured_keeps_its_proportion() -> None:
    """Only decode steps were seen, twice as slow as the law: prefill is taken for twice as slow as well."""
    model = CostModel(LAW)
    model.fit([(shape, 2 * by_hand(shape)) for n in range(1, 5) for shape in [StepShape(n, 100 * n, num_sampled=n)]])
    assert model.predict(StepShape(num_prefill=64)) == pytest.approx(2 * by_hand(StepShape(num_prefill=64)), rel=0.2)


def test_corrections_follow_a_slower_machine_and_leave_other_kinds_of_step_alone() -> None:
    model, decode, prefill = CostModel(LAW), StepShape(2, 400, num_sampled=2), StepShape(num_prefill=64)
    for _ in range(60):
        model.observe(decode, 1.5 * by_hand(decode))
    assert model.predict(decode) == pytest.approx(1.5 * by_hand(decode), rel=0.01)
    assert model.predict(prefill) == pytest.approx(by_hand(prefill))


def test_a_step_in_ten_that_is_twice_as_long_hardly_moves_a_prediction() -> None:
    model, shape = CostModel(LAW), StepShape(2, 400, num_sampled=2)
    for step in range(200):
        model.observe(shape, by_hand(shape) * (2 if step % 10 == 9 else 1))
    # Each counts as 1.2, and a tenth of that; nine good ones leave 0.9**9 of it.
    assert model.predict(shape) == pytest.approx((1 + 0.02 / (1 - 0.9**9)) * by_hand(shape), rel=1e-3)


def test_an_outlier_does_not_move_the_prediction_but_a_run_of_them_does() -> None:
    model, shape = CostModel(LAW), StepShape(1, 100, num_sampled=1)
    for step in range(200):
        model.observe(shape, by_hand(shape) * (20 if step % 10 == 9 else 1))
    assert model.predict(shape) == pytest.approx(by_hand(shape))
    assert model.num_outliers == 20
    for _ in range(5):
        model.observe(shape, 20 * by_hand(shape))
    assert model.predict(shape) == pytest.approx(20 * by_hand(shape), rel=0.01)


def test_what_was_not_seen_for_long_is_believed_as_it_comes() -> None:
    """Calibrated while the machine was busy: everything takes two fifths of what was thought."""
    model, decode, prefill = CostModel(LAW), StepShape(2, 400, num_sampled=2), StepShape(num_prefill=64)
    model.observe(prefill, by_hand(prefill))
    for _ in range(300):
        model.observe(decode, 0.39 * by_hand(decode))
    assert model.predict(decode) == pytest.approx(0.39 * by_hand(decode))
    model.observe(prefill, 0.39 * by_hand(prefill))
    assert model.predict(prefill) == pytest.approx(0.39 * by_hand(prefill))


def test_an_engine_that_does_not_measure_teaches_nothing() -> None:
    model = CostModel(LAW)
    model.observe(StepShape(1, 1), 0.0)
    assert model.num_observed == 0


def test_coefficients_survive_a_file() -> None:
    assert CostModel.from_dict(CostModel(LAW).to_dict()).coefficients == LAW


def test_shape_of_a_mixed_plan() -> None:
    def int32(*values: int) -> np.ndarray:
        return np.array(values, np.int32)

    plan = StepPlan(
        0, int32(0, 1, 2), int32(9, 4, 0), int32(1, 3, 2), np.array([True, False, True]), int32(*range(6)),
        np.zeros((3, 1), np.int32), 0, 4,
    )  # fmt: skip
    # Decode at position 9 attends to 10; rows 4, 5, 6 to 5 + 6 + 7; rows 0, 1 to 1 + 2.
    assert shape_of(plan, 4) == StepShape(1, 10, 5, 21, 2, 1.0)
    assert shape_of(plan, 8) == StepShape(1, 10, 5, 21, 0, 0.5)


def test_a_later_decode_step_is_predicted_to_the_bit() -> None:
    model = CostModel()
    for corrected in (False, True):
        if corrected:
            model.observe(StepShape(3, 1200, num_sampled=3), 1.3 * model.predict(StepShape(3, 1200, num_sampled=3)))
        shape = StepShape(3, 1200, num_sampled=3)
        for steps in (0, 1, 7, 1000):
            later = StepShape(3, 1200 + 3 * steps, num_sampled=3)
            assert model.predict_run(shape, range(steps, steps + 1)) == [model.predict(later)]
