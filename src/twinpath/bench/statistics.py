"""Numbers with their sample size and spread; nothing here reports a percentile that its sample cannot carry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest value with at least a share `q` of the sample at or below it (nearest rank; no invented values)."""
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in short. A tail percentile is None when fewer than 1 / (1 - q) samples exist.

    It would only be the maximum.
    """

    n: int
    mean: float
    min: float
    p25: float
    p50: float
    p75: float
    p90: float | None
    p99: float | None
    p999: float | None
    max: float


def describe(values: Iterable[float]) -> Distribution | None:
    """Distribution of the finite sample `values`; None when it is empty."""
    ordered = sorted(values)
    num = len(ordered)
    if not num:
        return None

    def tail(q: float, needed: int) -> float | None:
        return quantile(ordered, q) if num >= needed else None

    return Distribution(
        n=num,
        mean=math.fsum(ordered) / num,
        min=ordered[0],
        p25=quantile(ordered, 0.25),
        p50=quantile(ordered, 0.5),
        p75=quantile(ordered, 0.75),
        p90=tail(0.9, 10),
        p99=tail(0.99, 100),
        p999=tail(0.999, 1000),
        max=ordered[-1],
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of independent `values`: order statistics, no assumption on their distribution.

    Source: the binomial bound n/2 -+ 1.96 sqrt(n)/2 on how many of n values lie below their median.
    """
    ordered = sorted(values)
    num = len(ordered)
    reach = 1.96 * math.sqrt(num) / 2
    return ordered[max(math.floor(num / 2 - reach), 0)], ordered[min(math.ceil(num / 2 + reach), num - 1)]


class PairedRatio(msgspec.Struct, frozen=True, kw_only=True):
    """ours / theirs over rounds that ran side by side: a machine that drifts moves both members of a pair."""

    rounds: int
    median: float
    min: float
    max: float
    p25: float
    p75: float


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> PairedRatio:
    """Ratio per round, then its median and spread. Lower than 1 means ours is faster when the values are times."""
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"paired rounds need equal, non-zero counts, got {len(ours)} and {len(theirs)}")
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    middle = len(ratios) // 2
    median = ratios[middle] if len(ratios) % 2 else (ratios[middle - 1] + ratios[middle]) / 2
    return PairedRatio(
        rounds=len(ratios),
        median=median,
        min=ratios[0],
        max=ratios[-1],
        p25=quantile(ratios, 0.25),
        p75=quantile(ratios, 0.75),
    )
