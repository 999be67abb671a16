"""The reserve of a period: as large as keeps one gap in a hundred late."""

from __future__ import annotations

import pytest

from twinpath.scheduler.cost import StepShape
from twinpath.scheduler.reserve import Reserve

DECODE, MIXED = StepShape(8, 800), StepShape(8, 800, 64, 6400)
SLICE = StepShape(num_prefill=2048, prefill_context=1 << 20, layer_share=1 / 32)


def test_it_settles_where_one_gap_in_a_hundred_is_late() -> None:
    reserve, late = Reserve(), 0
    for gap in range(20_000):
        # Gaps fill what the reserve leaves of 8 ms, and are off by up to 4 %, evenly, in an order without a pattern.
        gap_ms = 8.0 * (1.0 - reserve.share) * (1.0 + 0.04 * (gap * 0.6180339887 % 1.0))
        reserve.note(SLICE, 0.3 * gap_ms, 8.0)
        reserve.note(DECODE, 0.7 * gap_ms, 8.0)
        late += gap >= 2000 and gap_ms > 8.0
    assert late / 18_000 == pytest.approx(0.01, abs=0.001)
    assert 0.02 < reserve.share < 0.07


def test_gaps_without_prefill_or_streams_say_nothing() -> None:
    reserve = Reserve()
    reserve.note(DECODE, 100.0, 8.0)
    reserve.note(SLICE, 100.0, None)
    reserve.note(MIXED, 100.0, None)
    assert reserve.share == 0.0
    reserve.note(MIXED, 8.1, 8.0)
    assert reserve.share > 0.0


def test_it_never_keeps_more_than_a_part() -> None:
    reserve = Reserve()
    for _ in range(1000):
        reserve.note(MIXED, 100.0, 8.0)
    assert reserve.share == pytest.approx(0.15)
