"""Policies side by side: the same arrivals for all, differences with intervals, the load at which they tell apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec

from twinpath.plan.outcome import quantile
from twinpath.plan.simulate import Outcome

#: One number per time block: how many requests came in it, and how many of them met their targets.
Blocks = list[tuple[int, int]]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """attainment(policy) - attainment(baseline), with the 95 % interval and a verdict.

    verdict: "better" or "worse" when the interval leaves out 0, else "not resolved".
    """

    policy: str
    baseline: str
    mean: float
    low: float
    high: float
    verdict: str


def block_attainment(outcomes: Sequence[Outcome], num_blocks: int, class_name: str | None = None) -> Blocks:
    """Requests and met ones by blocks of the arrival index, so that the same requests share a block in every run."""
    blocks = [[0, 0] for _ in range(num_blocks)]
    size = max(-(-len(outcomes) // num_blocks), 1)
    for outcome in outcomes:
        if class_name is None or outcome.arrival.slo.name == class_name:
            block = blocks[outcome.arrival.index // size]
            block[0] += 1
            block[1] += outcome.met
    return [(num, met) for num, met in blocks]


def paired_difference(
    policy: str,
    baseline: str,
    ours: Sequence[Blocks],
    theirs: Sequence[Blocks],
    *,
    num_resamples: int = 4000,
    seed: int = 0,
) -> Difference:
    """Bootstrap over seeds, and over blocks within a seed: requests of one burst stand or fall together.

    Shapes: ours, theirs: [num_seeds][num_blocks], the same seeds and blocks.
    """
    random = Random(seed)
    paired = [
        [(num, met - other_met) for (num, met), (_, other_met) in zip(blocks, other, strict=True)]
        for blocks, other in zip(ours, theirs, strict=True)
    ]
    means = []
    for _ in range(num_resamples):
        num = difference = 0
        for blocks in random.choices(paired, k=len(paired)):
            for block_num, block_difference in random.choices(blocks, k=len(blocks)):
                num += block_num
                difference += block_difference
        means.append(difference / max(num, 1))
    means.sort()
    total = sum(num for blocks in paired for num, _ in blocks)
    low, high = quantile(means, 0.025), quantile(means, 0.975)
    return Difference(
        policy=policy,
        baseline=baseline,
        mean=sum(difference for blocks in paired for _, difference in blocks) / max(total, 1),
        low=low,
        high=high,
        verdict="better" if low > 0 else "worse" if high < 0 else "not resolved",
    )


def find_load(
    attainment: Callable[[float], float], target: tuple[float, float] = (0.7, 0.9), start: float = 1.0
) -> tuple[float, float]:
    """(load, attainment) with the attainment inside `target`, which falls as load grows; the nearest of 20 tries."""
    low, high = 0.0, 0.0
    load = start
    best = (load, -1.0)
    middle = (target[0] + target[1]) / 2
    for _ in range(20):
        reached = attainment(load)
        if abs(reached - middle) < abs(best[1] - middle):
            best = (load, reached)
        if target[0] <= reached <= target[1]:
            break
        if reached > target[1]:
            low = load
            load = (low + high) / 2 if high else 2 * load
        else:
            high = load
            load = (low + high) / 2
    return best


def compare(
    runs: Mapping[str, Sequence[Sequence[Outcome]]], baseline: str, class_name: str | None = None, num_blocks: int = 20
) -> list[Difference]:
    """Every policy of `runs` (policy -> one list of outcomes per seed) against `baseline`."""
    blocks = {
        policy: [block_attainment(outcomes, num_blocks, class_name) for outcomes in seeds]
        for policy, seeds in runs.items()
    }
    return [
        paired_difference(policy, baseline, blocks[policy], blocks[baseline]) for policy in runs if policy != baseline
    ]
