from __future__ import annotations

import pytest

from twinpath.bench import describe, median_interval, paired_ratio


def test_percentiles_are_values_of_the_sample() -> None:
    summary = describe(float(value) for value in range(1000, 0, -1))
    assert summary is not None
    assert (summary.n, summary.min, summary.p50, summary.p99, summary.p999, summary.max) == (
        1000,
        1,
        500,
        990,
        999,
        1000,
    )
    assert (summary.p25, summary.p75, summary.mean) == (250, 750, 500.5)


@pytest.mark.parametrize(("num", "known"), [(9, 0), (10, 1), (99, 1), (100, 2), (999, 2), (1000, 3)])
def test_a_tail_needs_its_sample(num: int, known: int) -> None:
    summary = describe([1.0] * num)
    assert summary is not None
    assert sum(tail is not None for tail in (summary.p90, summary.p99, summary.p999)) == known


def test_nothing_has_no_distribution() -> None:
    assert describe([]) is None


def test_pairing_removes_a_drift_that_both_sides_share() -> None:
    drift = [1.0, 2.0, 4.0, 8.0]
    ratio = paired_ratio([3 * d for d in drift], [6 * d for d in drift])
    assert (ratio.rounds, ratio.median, ratio.min, ratio.max) == (4, 0.5, 0.5, 0.5)


def test_spread_of_uneven_pairs() -> None:
    ratio = paired_ratio([1.0, 2.0, 3.0, 4.0, 5.0], [10.0] * 5)
    assert (ratio.median, ratio.min, ratio.p25, ratio.p75, ratio.max) == (0.3, 0.1, 0.2, 0.4, 0.5)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])])
def test_pairs_must_match(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="equal, non-zero"):
        paired_ratio(ours, theirs)


def test_the_interval_of_a_median_is_made_of_order_statistics() -> None:
    # n = 100: 50 -+ 9.8 of the ordered values.
    assert median_interval(range(100)) == (40, 60)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
