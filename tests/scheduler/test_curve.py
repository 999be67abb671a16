"""A cost curve follows steps that are padded to sizes, and attention at two rates."""

from __future__ import annotations

import pytest

from twinpath.scheduler.cost import CUDA_PRIOR, StepShape, prefill_context
from twinpath.scheduler.curve import H200_FEW_RATE, H200_MANY_RATE, H200_POINTS, CurvedCost

SIZES = tuple(rows for rows, _ in H200_POINTS)


def law_ms(shape: StepShape) -> float:
    """An engine that is half as fast as the prior says, but for attention, where it is four times slower."""
    if not shape.num_prefill:
        return 9.0 + 0.02 * shape.num_decode
    num_rows = shape.num_prefill + shape.num_decode
    padded = next((size for size in SIZES if size >= num_rows), num_rows) if num_rows <= 512 else num_rows
    rate = 4 * (H200_FEW_RATE if num_rows < 2048 else H200_MANY_RATE)
    return 0.1 + 2 * (4.8 + 0.02 * padded) * shape.layer_share + rate * shape.prefill_context * shape.layer_share


def prefill(num_rows: int, start: int = 0, num_decode: int = 0, layer_share: float = 1.0) -> StepShape:
    return StepShape(num_decode, 0, num_rows, prefill_context(start, num_rows), layer_share=layer_share)


@pytest.fixture
def cost() -> CurvedCost:
    model = CurvedCost(CUDA_PRIOR, H200_POINTS, H200_FEW_RATE, H200_MANY_RATE, chunk_grain=2048)
    shapes = [prefill(rows) for rows in SIZES if rows <= 1024] + [StepShape(n, n, num_sampled=n) for n in (1, 4, 8)]
    shapes += [prefill(rows, 16_384) for rows in (120, 248, 2048)]
    model.fit([(shape, law_ms(shape)) for shape in shapes for _ in range(3)])
    return model


@pytest.mark.parametrize(
    "shape",
    [
        prefill(128),
        prefill(100),
        prefill(129),
        prefill(120, num_decode=8),
        prefill(121, num_decode=8),
        prefill(500),
        prefill(700),
        prefill(2048, 28_672, layer_share=1 / 32),
        prefill(64, 28_672),
        StepShape(6, 6, num_sampled=6),
    ],
)
def test_it_knows_what_was_measured_and_what_lies_between(cost: CurvedCost, shape: StepShape) -> None:
    assert cost.predict(shape) == pytest.approx(law_ms(shape), rel=0.12)


def test_one_row_more_than_a_size_costs_the_next_size(cost: CurvedCost) -> None:
    # Contexts are short: attention adds little.
    assert cost.predict(prefill(128)) == pytest.approx(cost.predict(prefill(97)), rel=0.02)
    assert cost.predict(prefill(129)) > 1.2 * cost.predict(prefill(128))


def test_more_rows_never_cost_less() -> None:
    cost = CurvedCost(CUDA_PRIOR, H200_POINTS, 1e-6, 1e-6)
    cost.fit([(prefill(128), 20.0), (prefill(256), 5.0)])
    times = [cost.predict(prefill(rows)) for rows in range(8, 10_000, 8)]
    assert times == sorted(times)


def test_nothing_measured_changes_nothing() -> None:
    cost = CurvedCost(CUDA_PRIOR, H200_POINTS, H200_FEW_RATE, H200_MANY_RATE)
    before = cost.predict(prefill(128))
    cost.fit([])
    assert cost.predict(prefill(128)) == before and cost.sizes == SIZES
