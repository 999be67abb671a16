"""The native sampler against its twin: the same token always, the same log-probabilities to 1e-5, the same failures."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinpath.errors import EngineError
from twinpath.native.sampler import NativeSampler
from twinpath.sampling import sample
from twinpath.types import SamplingParams, TokenLogprob

from .conftest import Draw

VOCAB_SIZES = [1, 2, 63, 64, 65, 129, 1000, 5003]


def make_row(kind: str, vocab_size: int, rng: np.random.Generator) -> np.ndarray:
    """Rows that look like a model's, and rows that stress ties, borders, signs and ranges."""
    row = rng.normal(0, rng.choice([0.05, 1, 4, 30]), vocab_size)
    if kind == "integers":
        row = np.round(row)
    elif kind == "equal":
        row[:] = row[0]
    elif kind == "signed_zeros":
        row = rng.choice([0.0, -0.0], vocab_size)
    elif kind == "masked":
        row[rng.random(vocab_size) < 0.6] = -np.inf
    elif kind == "log_spaced":
        row = rng.choice([-1, 1], vocab_size) * 10.0 ** rng.uniform(-38, 38, vocab_size)
    elif kind == "bad":
        row[rng.integers(vocab_size)] = rng.choice([np.nan, np.inf])
    elif kind == "neighbours":
        row = np.float32(10) + np.spacing(np.float32(10)) * rng.integers(0, 4, vocab_size)
    return row.astype(np.float32)


def make_mask(vocab_size: int, rng: np.random.Generator) -> np.ndarray:
    """From nearly nothing legal to all; bits past the vocabulary are set too."""
    words = rng.random((-(-vocab_size // 32), 32)) < rng.choice([0.001, 0.1, 0.5, 0.99])
    return np.packbits(words, axis=1, bitorder="little").view("<i4").astype(np.int32).reshape(-1)


ROWS = st.builds(
    lambda kind, size, seed: make_row(kind, size, np.random.default_rng(seed)),
    st.sampled_from(
        ["model", "model", "integers", "equal", "signed_zeros", "masked", "log_spaced", "bad", "neighbours"]
    ),
    st.sampled_from(VOCAB_SIZES),
    st.integers(0, 2**32),
)
IDS = st.integers(-1, max(VOCAB_SIZES))
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    min_tokens=st.sampled_from([0, 0, 3, 1000]),
    temperature=st.sampled_from([0.0, 1e-7, 1e-3, 0.3, 0.7, 1.0, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 7, 50, 1000, 2**31 - 1]),
    top_p=st.one_of(st.just(1.0), st.sampled_from([0.0, 1e-6, 0.25, 0.5, 0.9, 0.999999]), st.floats(0, 1)),
    min_p=st.one_of(st.just(0.0), st.sampled_from([1e-9, 0.05, 0.5, 1.0])),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.1, 0.5, 2.0, 1e6]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5, 2.0, -2.0, 1e6]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.1, 2.0, -2.0]),
    logit_bias=st.dictionaries(IDS, st.sampled_from([-100.0, 100.0, 0.5, -0.25]), max_size=8),
    seed=st.integers(-(2**63), 2**64 - 1),
    stop_token_ids=st.lists(IDS, max_size=3).map(tuple),
    logprobs=st.sampled_from([None, 0, 3, 20]),
)
HISTORIES = st.builds(
    lambda seed, size, high: np.random.default_rng(seed).integers(-1, high, size).astype(np.int32),
    st.integers(0, 2**32), st.sampled_from([0, 1, 5, 300]), st.sampled_from([3, 70, 6000]),
)  # fmt: skip


def outcome(draw: Draw, *arguments: object) -> tuple[int, TokenLogprob | None] | str:
    try:
        return draw(*arguments)
    except EngineError as error:
        return str(error)


def assert_same_logprob(mine: TokenLogprob | None, theirs: TokenLogprob | None) -> None:
    if mine is None or theirs is None:
        assert mine is theirs
        return
    assert mine.token_id == theirs.token_id
    assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
    values = [mine.logprob, *(value for _, value in mine.top)]
    np.testing.assert_allclose(values, [theirs.logprob, *(value for _, value in theirs.top)], rtol=1e-5, atol=1e-300)


# A busy machine draws examples slowly; that says nothing about the sampler.
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(row=ROWS, params=PARAMS, history=HISTORIES, share=st.floats(0, 1), mask_seed=st.none() | st.integers(0, 2**32))
def test_native_equals_reference(
    draw_natively: Draw,
    row: np.ndarray,
    params: SamplingParams,
    history: np.ndarray,
    share: float,
    mask_seed: int | None,
) -> None:
    mask = None if mask_seed is None else make_mask(len(row), np.random.default_rng(mask_seed))
    arguments = (row, params, history, int(share * len(history)), len(history), mask)
    untouched = row.copy()
    expected, got = outcome(sample, *arguments), outcome(draw_natively, *arguments)
    if isinstance(expected, str) or isinstance(got, str):
        assert got == expected
    else:
        assert got[0] == expected[0]
        assert_same_logprob(got[1], expected[1])
    assert np.array_equal(row.view(np.int32), untouched.view(np.int32)), "the row must come back as it was"


@pytest.mark.parametrize("vocab_size", [49_152, 151_936, 262_144])
@pytest.mark.parametrize("kind", ["model", "integers", "equal"])
def test_native_equals_reference_at_real_vocabularies(draw_natively: Draw, vocab_size: int, kind: str) -> None:
    rng = np.random.default_rng(vocab_size)
    row = make_row(kind, vocab_size, rng)
    history = rng.integers(0, vocab_size, 500).astype(np.int32)
    for top_k, top_p in [(0, 1.0), (0, 0.9), (40, 0.95), (5000, 0.5)]:
        params = SamplingParams(
            max_tokens=1, temperature=0.8, top_k=top_k, top_p=top_p, min_p=0.01, repetition_penalty=1.1,
            presence_penalty=0.2, frequency_penalty=0.1, logit_bias={5: 2.0}, seed=top_k, logprobs=5,
        )  # fmt: skip
        for position in (500, 501):
            expected = sample(row, params, history, 300, position)
            got = draw_natively(row, params, history, 300, position)
            assert got[0] == expected[0]
            assert_same_logprob(got[1], expected[1])


def test_slots_are_independent_and_rebind(sampler_library: ctypes.CDLL) -> None:
    sampler = NativeSampler(sampler_library, 4, 2)
    row = np.array([3.0, 2.0, 1.0, 0.0], np.float32)
    strict = SamplingParams(max_tokens=9, temperature=0.0, presence_penalty=10.0)
    for slot in (0, 1):
        sampler.reset(slot, strict, np.empty(0, np.int32), 0)
    for position, expected in enumerate([0, 1, 2, 3]):
        assert sampler.sample(0, row, position) == expected
        sampler.append(0, expected)
    assert sampler.sample(1, row, 0) == 0
    sampler.reset(0, strict, np.array([0, 1], np.int32), 1)
    assert sampler.sample(0, row, 2) == 0
    sampler.close()


def test_a_slot_that_is_unknown_or_unbound_is_refused(sampler_library: ctypes.CDLL) -> None:
    sampler = NativeSampler(sampler_library, 4, 2)
    row = np.zeros(4, np.float32)
    for slot in (-1, 0, 2):
        with pytest.raises(EngineError, match="not bound"):
            sampler.sample(slot, row, 0)
    sampler.close()


@pytest.mark.parametrize(("vocab_size", "num_slots"), [(0, 1), (-1, 1), (4, 0), (2**19 + 1, 1)])
def test_impossible_sizes_are_refused(sampler_library: ctypes.CDLL, vocab_size: int, num_slots: int) -> None:
    with pytest.raises(EngineError, match="cannot create a sampler"):
        NativeSampler(sampler_library, vocab_size, num_slots)
