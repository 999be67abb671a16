"""What sampling means, checked on both samplers against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twinpath.errors import EngineError
from twinpath.sampling import philox_4x32
from twinpath.sampling.reference import fixed_exp
from twinpath.types import SamplingParams

from .conftest import Draw

NO_HISTORY = np.empty(0, np.int32)


def logits_of(*probabilities: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities, np.float64)).astype(np.float32)


def params_of(**settings: object) -> SamplingParams:
    return SamplingParams(max_tokens=10_000, **settings)  # type: ignore[arg-type]


def drawn(draw: Draw, logits: np.ndarray, params: SamplingParams, num_draws: int = 400) -> set[int]:
    """Every id that comes up in `num_draws` positions."""
    return {draw(logits, params, NO_HISTORY, 0, position)[0] for position in range(num_draws)}


def greedy(draw: Draw, logits: np.ndarray, history: list[int], num_prompt: int, **settings: object) -> int:
    params = params_of(temperature=0.0, **settings)
    return draw(logits, params, np.array(history, np.int32), num_prompt, len(history))[0]


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((1 << 64) - 1, (1 << 128) - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0A4093822,
            0x0370734413198A2E85A308D3243F6A88,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(key: int, counter: int, words: tuple[int, ...]) -> None:
    # Random123's kat_vectors for philox4x32-10.
    assert philox_4x32(key, counter) == words


def test_fixed_exp_is_exp_rounded_to_34_bits() -> None:
    exponents = np.concatenate([np.linspace(-30, 0, 10_001), [-1e300, -math.inf, -0.0]])
    expected = np.array([math.exp(x) for x in exponents]) * 2.0**34
    assert np.abs(fixed_exp(exponents) - expected).max() <= 0.5 + 2.0**-7
    assert fixed_exp(np.zeros(1))[0] == 2**34


def test_greedy_takes_the_best_and_ties_go_to_the_lowest_id(draw: Draw) -> None:
    assert greedy(draw, np.array([1, 5, 3, 5], np.float32), [], 0) == 1
    assert greedy(draw, np.full(200, -7, np.float32), [], 0) == 0
    zeros = np.full(200, -1, np.float32)
    zeros[70], zeros[150] = -0.0, 0.0
    assert greedy(draw, zeros, [], 0) == 70


def test_logit_bias_is_added(draw: Draw) -> None:
    logits = np.array([0.0, 1.0, 2.0], np.float32)
    assert greedy(draw, logits, [], 0, logit_bias={0: 2.5}) == 0
    assert greedy(draw, logits, [], 0, logit_bias={2: -100.0}) == 1
    assert greedy(draw, logits, [], 0, logit_bias={3: 100.0, -1: 100.0}) == 2


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits(draw: Draw) -> None:
    # Prompt and output alike; once per id however often it occurred.
    assert greedy(draw, np.array([4.0, 3.0], np.float32), [0, 0], 1, repetition_penalty=1.3) == 0
    assert greedy(draw, np.array([4.0, 3.0], np.float32), [0, 0], 2, repetition_penalty=1.4) == 1
    assert greedy(draw, np.array([-3.0, -4.0], np.float32), [0], 1, repetition_penalty=1.3) == 0
    assert greedy(draw, np.array([-3.0, -4.0], np.float32), [0], 0, repetition_penalty=1.4) == 1


def test_frequency_and_presence_count_the_output_only(draw: Draw) -> None:
    logits = np.array([2.0, 1.0], np.float32)
    assert greedy(draw, logits, [0, 0, 0, 0], 4, frequency_penalty=2.0, presence_penalty=2.0) == 0
    assert greedy(draw, logits, [0, 0, 0, 0], 1, frequency_penalty=0.3) == 0
    assert greedy(draw, logits, [0, 0, 0, 0], 1, frequency_penalty=0.4) == 1
    assert greedy(draw, logits, [0, 0, 0, 0], 1, presence_penalty=0.9) == 0
    assert greedy(draw, logits, [0], 0, presence_penalty=1.1) == 1


def test_settings_apply_in_the_documented_order(draw: Draw) -> None:
    # Bias before the repetition penalty: (4 + 4) / 2 = 4 < 5; the other way round 4 / 2 + 4 = 6.
    logits = np.array([4.0, 5.0], np.float32)
    assert greedy(draw, logits, [0], 1, logit_bias={0: 4.0}, repetition_penalty=2.0) == 1
    # Repetition before presence: 4 / 2 - 1 = 1 < 1.25; the other way round (4 - 1) / 2 = 1.5.
    logits = np.array([4.0, 1.25], np.float32)
    assert greedy(draw, logits, [0], 0, repetition_penalty=2.0, presence_penalty=1.0) == 1


def test_min_tokens_masks_the_stop_ids_until_enough_output(draw: Draw) -> None:
    logits = np.array([1.0, 9.0, 8.0], np.float32)
    settings = {"min_tokens": 2, "stop_token_ids": (1, 2, 99)}
    assert greedy(draw, logits, [5, 5, 5, 0], 3, **settings) == 0
    assert greedy(draw, logits, [5, 5, 5, 0, 0], 3, **settings) == 1
    assert greedy(draw, logits, [5, 5, 5, 0], 3, logit_bias={1: 100.0}, **settings) == 0


def test_temperature_sharpens_and_flattens(draw: Draw) -> None:
    logits = logits_of(0.6, 0.4)
    share = [
        sum(draw(logits, params_of(temperature=t, seed=5), NO_HISTORY, 0, p)[0] == 0 for p in range(2000)) / 2000
        for t in (0.25, 1.0, 100.0)
    ]
    # 0.6^4 / (0.6^4 + 0.4^4) = 0.835; five standard errors are 0.056.
    assert np.allclose(share, [0.835, 0.6, 0.501], atol=0.056)


def test_top_k_keeps_the_best_and_the_lower_id_of_a_tie(draw: Draw) -> None:
    logits = logits_of(0.2, 0.1, 0.3, 0.2, 0.2)
    assert drawn(draw, logits, params_of(top_k=1)) == {2}
    assert drawn(draw, logits, params_of(top_k=3)) == {0, 2, 3}
    assert drawn(draw, logits, params_of(top_k=99)) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_shortest_run_that_reaches_p(draw: Draw) -> None:
    uniform = np.zeros(8, np.float32)
    assert drawn(draw, uniform, params_of(top_p=0.5)) == {0, 1, 2, 3}
    assert drawn(draw, uniform, params_of(top_p=0.5 + 1e-9)) == {0, 1, 2, 3, 4}
    assert drawn(draw, logits_of(0.1, 0.5, 0.4), params_of(top_p=0.45)) == {1}
    assert drawn(draw, logits_of(0.1, 0.5, 0.4), params_of(top_p=0.55)) == {1, 2}
    assert drawn(draw, uniform, params_of(top_p=1e-6)) == {0}


def test_top_p_counts_the_mass_that_top_k_left(draw: Draw) -> None:
    # Of 0.4 + 0.3, the first holds 57 %.
    logits = logits_of(0.1, 0.2, 0.3, 0.4)
    assert drawn(draw, logits, params_of(top_k=2, top_p=0.55)) == {3}
    assert drawn(draw, logits, params_of(top_k=2, top_p=0.6)) == {2, 3}


def test_min_p_is_relative_to_the_best_after_temperature(draw: Draw) -> None:
    logits = logits_of(0.5, 0.3, 0.2)
    assert drawn(draw, logits, params_of(min_p=0.5)) == {0, 1}
    assert drawn(draw, logits, params_of(min_p=0.5, temperature=2.0)) == {0, 1, 2}
    assert drawn(draw, np.zeros(4, np.float32), params_of(min_p=1.0)) == {0, 1, 2, 3}


def test_the_draw_inverts_the_cdf_in_id_order(draw: Draw) -> None:
    logits = logits_of(0.25, 0.5, 0.25)
    bounds = np.cumsum([0.25, 0.5, 0.25])
    for position in range(200):
        low, high, _, _ = philox_4x32(77, position)
        u = (high << 32 | low) / 2**64
        expected = int(np.searchsorted(bounds, u, side="right"))
        assert draw(logits, params_of(seed=77), NO_HISTORY, 0, position)[0] == expected


def test_the_draw_depends_on_seed_and_position_only(draw: Draw) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 1, 500).astype(np.float32)
    histories = [rng.integers(0, 500, 40).astype(np.int32) for _ in range(2)]
    first, again = (
        [draw(logits, params_of(seed=8), history, 7, position)[0] for position in range(50)] for history in histories
    )
    assert first == again
    assert first != [draw(logits, params_of(seed=9), histories[0], 7, position)[0] for position in range(50)]
    wrapped = params_of(seed=8 - 2**64)
    assert first == [draw(logits, wrapped, histories[0], 7, position)[0] for position in range(50)]


def test_logprobs_are_of_the_raw_logits(draw: Draw) -> None:
    logits = logits_of(0.5, 0.125, 0.25, 0.125)
    params = params_of(temperature=0.0, logprobs=3, logit_bias={3: 100.0})
    token, logprob = draw(logits, params, NO_HISTORY, 0, 0)
    assert token == 3 and logprob is not None
    assert logprob.logprob == pytest.approx(math.log(0.125), rel=1e-6)
    assert [token_id for token_id, _ in logprob.top] == [0, 2, 1]
    assert [value for _, value in logprob.top] == pytest.approx([math.log(p) for p in (0.5, 0.25, 0.125)], rel=1e-6)


def test_a_near_certain_token_keeps_its_small_logprob(draw: Draw) -> None:
    _, logprob = draw(np.array([30.0, 0.0], np.float32), params_of(temperature=0.0, logprobs=0), NO_HISTORY, 0, 0)
    assert logprob is not None and logprob.logprob == pytest.approx(-math.exp(-30), rel=1e-9)


def test_minus_infinity_means_never_and_every_logprob_is_finite(draw: Draw) -> None:
    logits = np.full(300, -np.inf, np.float32)
    logits[[7, 250]] = 1.0
    assert drawn(draw, logits, params_of()) == {7, 250}
    assert drawn(draw, logits, params_of(top_k=3, top_p=0.9)) == {7, 250}
    assert drawn(draw, logits, params_of(logit_bias={3: 100.0})) == {7, 250}
    _, logprob = draw(logits, params_of(logprobs=5), NO_HISTORY, 0, 0)
    assert logprob is not None and [token for token, _ in logprob.top] == [7, 250]


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 63, 64, 199])
def test_a_non_finite_logit_fails_the_row(draw: Draw, bad: float, at: int) -> None:
    logits = np.zeros(200, np.float32)
    logits[at] = bad
    for settings in ({"temperature": 0.0}, {}, {"min_tokens": 1, "stop_token_ids": (at,)}, {"logit_bias": {at: -1.0}}):
        with pytest.raises(EngineError, match="non-finite"):
            draw(logits, params_of(**settings), NO_HISTORY, 0, 0)


def test_a_row_with_nothing_left_fails(draw: Draw) -> None:
    with pytest.raises(EngineError, match="masked"):
        draw(np.full(100, -np.inf, np.float32), params_of(), NO_HISTORY, 0, 0)
    with pytest.raises(EngineError, match="masked"):
        draw(np.zeros(2, np.float32), params_of(min_tokens=1, stop_token_ids=(0, 1)), NO_HISTORY, 0, 0)


def test_extreme_finite_logits_stay_finite(draw: Draw) -> None:
    largest = np.finfo(np.float32).max
    logits = np.array([largest, -largest, 0.0], np.float32)
    assert greedy(draw, logits, [0, 1], 0, repetition_penalty=0.01, logit_bias={0: 100.0}) == 0
    assert drawn(draw, logits, params_of(temperature=1e-3, logit_bias={1: -100.0}), 20) == {0}
