"""The Weibull fit: against known parameters, a likelihood maximised by brute force, and closed forms."""

from __future__ import annotations

import math
import random

import pytest

from twinpath.scheduler.waits import WaitHistory, Weibull, fit_weibull


def log_likelihood(shape: float, scale: float, served: list[float], censored: list[float]) -> float:
    """The definition: density of what was seen, survival of what was not."""
    total = sum(math.log(shape / scale) + (shape - 1) * math.log(x / scale) for x in served)
    return total - sum((x / scale) ** shape for x in [*served, *censored])


def draw(shape: float, scale: float, count: int, seed: int) -> list[float]:
    source = random.Random(seed)
    return [source.weibullvariate(scale, shape) for _ in range(count)]


@pytest.mark.parametrize(("shape", "scale"), [(0.7, 0.02), (1.0, 3.0), (1.82, 12.7), (6.0, 400.0)])
def test_finds_the_parameters_of_a_large_sample(shape: float, scale: float) -> None:
    fitted = fit_weibull(draw(shape, scale, 20_000, 1))
    assert fitted is not None
    # Standard errors at n = 20,000: 0.78 / sqrt(n) of the shape, 1.05 / (shape sqrt(n)) of the scale.
    assert fitted.shape == pytest.approx(shape, rel=4 * 0.78 / math.sqrt(20_000))
    assert fitted.scale_s == pytest.approx(scale, rel=4 * 1.05 / shape / math.sqrt(20_000))


def test_censored_waits_count() -> None:
    """Everything above 10 s is cut off there: the fit still finds the tail, and ignoring the cut ones does not."""
    waits = draw(1.82, 12.7, 20_000, 2)
    served = [wait for wait in waits if wait < 10]
    censored = [10.0] * (len(waits) - len(served))
    assert len(censored) > len(served)
    fitted, naive = fit_weibull(served, censored), fit_weibull(served)
    assert fitted is not None and naive is not None
    assert fitted.shape == pytest.approx(1.82, rel=0.04) and fitted.scale_s == pytest.approx(12.7, rel=0.04)
    assert naive.scale_s < 8


def test_is_the_maximum_of_the_likelihood() -> None:
    served, censored = draw(2.3, 5.0, 30, 3), draw(1.0, 3.0, 12, 4)
    fitted = fit_weibull(served, censored)
    assert fitted is not None
    best = log_likelihood(fitted.shape, fitted.scale_s, served, censored)
    for shape_factor in (0.9, 0.99, 1, 1.01, 1.1):
        for scale_factor in (0.9, 0.99, 1, 1.01, 1.1):
            if (shape_factor, scale_factor) != (1, 1):
                other = log_likelihood(fitted.shape * shape_factor, fitted.scale_s * scale_factor, served, censored)
                assert other < best


def test_guess_changes_nothing_but_the_work() -> None:
    waits = draw(1.4, 0.3, 200, 5)
    fits = [fit_weibull(waits, guess=guess) for guess in (0.05, 1.0, 1.4, 50.0, 1e9)]
    assert all(fit is not None and fits[0] is not None for fit in fits)
    assert [fit.shape for fit in fits if fit] == pytest.approx([fits[0].shape] * 5, rel=1e-4)  # type: ignore[union-attr]


def test_too_few_served_waits_give_no_fit() -> None:
    assert fit_weibull([1.0] * 7, [5.0] * 1000) is None
    assert WaitHistory().fit([3.0] * 50) is None


@pytest.mark.parametrize("waits", [[0.0] * 20, [2.0] * 20, [0.0] * 10 + [1e6] * 10, [1e-9, 1e9] * 8])
def test_degenerate_waits_stay_finite(waits: list[float]) -> None:
    fitted = fit_weibull(waits)
    assert fitted is not None and 0.05 <= fitted.shape <= 50 and 0 < fitted.scale_s < 1e10
    for target in (0.0, 1e-12, 1.0, 1e12):
        assert 0 <= fitted.miss_probability(0.5, target) <= 1


def test_miss_probability() -> None:
    memoryless = Weibull(1.0, 4.0)
    assert memoryless.miss_probability(0, 4) == pytest.approx(math.exp(-1))
    assert memoryless.miss_probability(6, 10) == pytest.approx(memoryless.miss_probability(0, 4))
    ageing = Weibull(2.0, 4.0)
    assert ageing.miss_probability(2, 4) == pytest.approx(math.exp(-(4 - 1) / 4))
    assert ageing.miss_probability(4, 4) == ageing.miss_probability(9, 4) == 1


def test_history_is_a_window_over_what_ended_and_what_still_waits() -> None:
    history = WaitHistory(window=50)
    for wait in draw(2.0, 100.0, 300, 6):
        history.add(wait, served=True)
    assert history.num_new == 300 and len(history) == 50
    for wait in draw(2.0, 1.0, 50, 7):
        history.add(wait, served=True)
    alone, crowded = history.fit(), history.fit([8.0] * 25)
    assert alone is not None and crowded is not None and history.num_new == 0
    assert alone.scale_s == pytest.approx(1.0, rel=0.25)
    assert crowded.miss_probability(0, 4) > alone.miss_probability(0, 4)
    history.add(30.0, served=False)
    shed = history.fit()
    assert shed is not None and shed.miss_probability(0, 4) > alone.miss_probability(0, 4)
