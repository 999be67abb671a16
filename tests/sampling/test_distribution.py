"""Draws follow the distribution that the settings define: chi-square on fixed seeds, with a bound that can fail."""

from __future__ import annotations

import numpy as np
import pytest

from twinpath.types import SamplingParams

from .conftest import Draw

NO_HISTORY = np.empty(0, np.int32)
NUM_DRAWS = 6000
#: 0.1 % of right samplers would exceed this with 15 degrees of freedom; the seeds are fixed, so ours never does.
CHI_SQUARE_15 = 37.70

LOGITS = np.random.default_rng(11).normal(0, 1, 16).astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def chi_square(tokens: list[int], probabilities: np.ndarray) -> float:
    expected = probabilities * len(tokens)
    counts = np.bincount(tokens, minlength=len(probabilities))
    kept = expected > 0
    assert counts[~kept].sum() == 0
    return float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())


def over_positions(draw: Draw, temperature: float = 1.0, **settings: float) -> list[int]:
    params = SamplingParams(max_tokens=1, seed=2024, temperature=temperature, **settings)  # type: ignore[arg-type]
    return [draw(LOGITS, params, NO_HISTORY, 0, position)[0] for position in range(NUM_DRAWS)]


def test_positions_of_one_seed(draw: Draw) -> None:
    assert chi_square(over_positions(draw), softmax(LOGITS)) < CHI_SQUARE_15


def test_seeds_at_one_position(draw: Draw) -> None:
    tokens = [draw(LOGITS, SamplingParams(max_tokens=1, seed=seed), NO_HISTORY, 0, 100)[0] for seed in range(NUM_DRAWS)]
    assert chi_square(tokens, softmax(LOGITS)) < CHI_SQUARE_15


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature(draw: Draw, temperature: float) -> None:
    assert chi_square(over_positions(draw, temperature), softmax(LOGITS / temperature)) < CHI_SQUARE_15


def test_truncation_renormalises(draw: Draw) -> None:
    probabilities = softmax(LOGITS)
    ranked = np.argsort(-probabilities)
    kept = ranked[: int(np.searchsorted(probabilities[ranked].cumsum(), 0.8)) + 1]
    truncated = np.zeros(16)
    truncated[kept] = probabilities[kept] / probabilities[kept].sum()
    assert chi_square(over_positions(draw, top_p=0.8), truncated) < CHI_SQUARE_15


def test_the_bound_catches_a_sampler_that_is_slightly_off(draw: Draw) -> None:
    assert chi_square(over_positions(draw, temperature=1.1), softmax(LOGITS)) > CHI_SQUARE_15


def test_neighbouring_draws_are_independent(draw: Draw) -> None:
    params = SamplingParams(max_tokens=1, seed=31)
    coin = np.zeros(4, np.float32)
    tokens = [draw(coin, params, NO_HISTORY, 0, position)[0] for position in range(NUM_DRAWS)]
    pairs = [4 * a + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)]
    assert chi_square(pairs, np.full(16, 1 / 16)) < CHI_SQUARE_15
