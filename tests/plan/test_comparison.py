"""Paired differences, the search for a load, and the plots."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ElementTree

import pytest

from twinpath.plan.comparison import block_attainment, find_load, paired_difference
from twinpath.plan.outcome import quantile, spread
from twinpath.plan.plot import bar, curves_svg


def blocks(rate: float, seed: int, num_seeds: int = 5) -> list[list[tuple[int, int]]]:
    source = random.Random(seed)
    return [[(50, sum(source.random() < rate for _ in range(50))) for _ in range(20)] for _ in range(num_seeds)]


def test_a_clear_difference_is_better_or_worse() -> None:
    good, bad = blocks(0.85, 1), blocks(0.75, 2)
    better = paired_difference("a", "b", good, bad)
    worse = paired_difference("b", "a", bad, good)
    assert better.verdict == "better" and worse.verdict == "worse"
    assert better.mean == pytest.approx(-worse.mean) and better.low <= better.mean <= better.high
    # Ten points, at a standard error of about 0.8.
    assert better.low > 0.06 and better.high < 0.14


def test_no_difference_is_not_resolved() -> None:
    result = paired_difference("a", "b", blocks(0.8, 3), blocks(0.8, 4))
    assert result.verdict == "not resolved" and result.low < 0 < result.high
    same = blocks(0.8, 5)
    assert paired_difference("a", "b", same, same).verdict == "not resolved"


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(60):
        result = paired_difference("a", "b", blocks(0.8, 2 * seed), blocks(0.75, 2 * seed + 1), num_resamples=300)
        hits += result.low <= 0.05 <= result.high
    # 95 %, less a little for five seeds: fewer than 48 of 60 would be a wrong interval, all but sure.
    assert hits >= 48


def test_seeds_that_disagree_widen_the_interval() -> None:
    up, down = [(50, 50)] * 20, [(50, 30)] * 20
    disagreeing = paired_difference("a", "b", [up, down, up, down, up], [down, up, down, up, down])
    assert disagreeing.verdict == "not resolved" and disagreeing.high - disagreeing.low > 0.3


def test_block_attainment_of_nothing() -> None:
    assert block_attainment([], 3) == [(0, 0)] * 3


@pytest.mark.parametrize("capacity", [0.03, 1.0, 700.0])
def test_find_load(capacity: float) -> None:
    def attainment(load: float) -> float:
        return 1 / (1 + (load / capacity) ** 4)

    load, reached = find_load(attainment)
    assert 0.7 <= reached <= 0.9 and reached == attainment(load)


def test_find_load_of_a_cliff_gives_the_nearest() -> None:
    load, reached = find_load(lambda load: 0.99 if load < 3 else 0.1)
    assert load < 3 and reached == 0.99


def test_nearest_rank_quantiles() -> None:
    values = [float(value) for value in range(1, 101)]
    random.Random(0).shuffle(values)
    assert (spread(values).p50, spread(values).p90, spread(values).p99, spread(values).max) == (50, 90, 99, 100)
    assert quantile([3.0], 0.01) == quantile([3.0], 1.0) == 3.0
    assert spread([1.0, math.inf]).p99 == math.inf


def test_bar() -> None:
    assert bar(0, 8) == " " * 8 and bar(1, 8) == "█" * 8 and bar(7, 4) == "█" * 4
    assert bar(0.5, 8).rstrip() == "████" and bar(0.51, 8).startswith("████") and len(bar(0.3, 8)) == 8


def test_curves_are_well_formed_and_monotone() -> None:
    samples = {"fcfs <short>": [5.0, 80.0, 900.0, math.inf], "none": [math.inf]}
    svg = curves_svg("a & b", samples, {"fcfs <short>": 100.0})
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "a & b" in texts and "fcfs <short>" in texts
    [curve] = [e.get("d") for e in root.iter() if e.get("stroke-width") == "2" and e.get("d")]
    assert curve is not None
    points = [tuple(map(float, point.split())) for point in curve.replace("L", "M").split("M")[1:]]
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    # Three of four are served: the curve ends at 75 % of the height between 312 (0 %) and 48 (100 %).
    assert points[-1][1] == pytest.approx(312 - 0.75 * 264)
