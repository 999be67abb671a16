"""Pacing: the reserve settles where one gap in a hundred is late; the idle gap is a median."""

from __future__ import annotations

import random

import pytest

from twinpath.scheduler.pacing import Pacing

BUDGET_MS = 10.0


def test_the_reserve_settles_where_one_gap_in_a_hundred_is_late() -> None:
    """A gap is what the reserve leaves plus exponential noise of mean 0.5 ms: late with 1 % at 9.5 - 0.5 ln 100 = 7.2
    ms, a reserve of 0.28."""
    rng, pacing, now_s = random.Random(4), Pacing(), 0.0
    late = found = 0.0
    pacing.note_gap(now_s, BUDGET_MS, 3.0)
    for index in range(20_000):
        gap_ms = BUDGET_MS * (1.0 - pacing.reserve) + rng.expovariate(1 / 0.5)
        now_s += gap_ms / 1e3
        pacing.note_gap(now_s, BUDGET_MS, 3.0)
        if index >= 2_000:
            late += gap_ms > 9.5
            found += pacing.reserve
    assert late / 18_000 == pytest.approx(0.01, abs=0.002)
    assert found / 18_000 == pytest.approx(0.28, abs=0.03)


def test_steps_beside_a_chunk_have_a_median_of_their_own() -> None:
    pacing = Pacing()
    assert pacing.beside_ratio > 1.0
    for ratio in (2.0, 1.9, 9.0):
        pacing.note_beside(ratio)
    assert pacing.beside_ratio == 2.0 and pacing.idle_ratio is None


def test_the_reserve_has_bounds() -> None:
    pacing = Pacing()
    for step in range(200):
        pacing.note_gap(step * 1.0, BUDGET_MS, 3.0)
    assert pacing.reserve == 0.5
    for step in range(5000):
        pacing.note_gap(200.0 + step * 1e-3, BUDGET_MS, 3.0)
    assert pacing.reserve == 0.0


def test_the_idle_gap_is_a_median_of_steps_that_follow_steps() -> None:
    """Every tenth takes ten times as long; the first behind shared periods does not count."""
    pacing, now_s = Pacing(), 0.0
    pacing.note_gap(now_s, None, 2.0)
    for step in range(500):
        now_s += (30.0 if step % 10 == 9 else 3.0) / 1e3
        pacing.note_gap(now_s, None, 2.0)
    assert pacing.idle_ratio == pytest.approx(1.5)
    before = pacing.idle_ratio
    for _ in range(50):
        now_s += 9e-3
        pacing.note_gap(now_s, BUDGET_MS, 2.0)
    now_s += 5e-3  # The first without prefill ends the last one with it.
    pacing.note_gap(now_s, None, 2.0)
    now_s += 60.0  # Silence.
    pacing.note_gap(now_s, None, 2.0)
    assert pacing.idle_ratio == before
