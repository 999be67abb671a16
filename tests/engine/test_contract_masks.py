"""Masked segments on every engine: only legal tokens are sampled, others are not touched, a mask may come late."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from engine.engines import PROMPTS, alone
from engine.random_models import VOCAB_SIZE
from engine.step_driver import Driver, Sequence
from twinpath.types import Int32s, StepPlan, StepResult, TokenMasks

NUM_WORDS = -(-VOCAB_SIZE // 32)


def words_for(*legal: int) -> Int32s:
    words = np.zeros(NUM_WORDS, np.uint32)
    for token in legal:
        words[token >> 5] |= np.uint32(1 << (token & 31))
    return words.view(np.int32)


def run_masked(driver: Driver, plan: StepPlan, masks: dict[int, Int32s]) -> StepResult:
    """Submit with empty masks and fill them afterwards, as the loop does."""
    segments = np.array(sorted(masks), np.int32)
    held = TokenMasks(segments, np.zeros((len(masks), NUM_WORDS), np.int32))
    driver.engine.submit(dataclasses.replace(plan, masks=held))
    for row, segment in enumerate(segments.tolist()):
        held.words[row] = masks[segment]
    held.ready.set()
    return driver.result()


class Source:
    """Masks for an engine that asks for them; notes which were made in full."""

    def __init__(self, masks: TokenMasks, words: dict[int, Int32s]) -> None:
        self.filled: list[int] = []
        self._masks = masks
        self._words = list(words.values())

    def allows(self, index: int, token: int) -> bool:
        return bool(self._words[index].view(np.uint32)[token >> 5] >> np.uint32(token & 31) & 1)

    def fill(self, index: int) -> None:
        self.filled.append(index)
        self._masks.words[index] = self._words[index]


def run_asking(driver: Driver, plan: StepPlan, words: dict[int, Int32s]) -> tuple[StepResult, list[int]]:
    """The result, and the masks that were made for it."""
    segments = np.array(sorted(words), np.int32)
    empty = TokenMasks(segments, np.zeros((len(words), NUM_WORDS), np.int32))
    source = Source(empty, words)
    driver.engine.submit(dataclasses.replace(plan, masks=dataclasses.replace(empty, source=source)))
    return driver.result(), source.filled


def both(driver: Driver) -> tuple[list[Sequence], StepPlan]:
    sequences = [driver.sequence(slot, PROMPTS[slot], logprobs=2) for slot in (0, 1)]
    return sequences, driver.plan([driver.chunk(sequence) for sequence in sequences], inits=sequences)


def test_a_masked_segment_samples_a_legal_token_and_its_neighbour_is_free(driver: Driver) -> None:
    free = alone(driver, PROMPTS[0], 1)[0]
    legal = [token for token in (3, 40, VOCAB_SIZE - 1) if token != free]
    _, plan = both(driver)
    result = run_masked(driver, plan, {1: words_for(*legal)})
    assert result.tokens[0] == free and result.tokens[1] in legal and not result.failures


def test_a_mask_of_all_tokens_changes_nothing(driver: Driver) -> None:
    right = [alone(driver, PROMPTS[slot], 1)[0] for slot in (0, 1)]
    _, plan = both(driver)
    result = run_masked(driver, plan, {0: words_for(*range(VOCAB_SIZE)), 1: words_for(*range(VOCAB_SIZE))})
    assert result.tokens.tolist() == right


def test_one_legal_token_is_sampled_and_its_logprob_is_of_the_raw_row(driver: Driver) -> None:
    _, plan = both(driver)
    result = run_masked(driver, plan, {0: words_for(7)})
    assert result.tokens[0] == 7
    entry = result.logprobs[0][0]
    assert entry.token_id == 7 and entry.logprob < 0.0 and entry.logprob <= entry.top[0][1]


def test_a_mask_of_no_token_fails_that_segment_only(driver: Driver) -> None:
    free = alone(driver, PROMPTS[1], 1)[0]
    _, plan = both(driver)
    result = run_masked(driver, plan, {0: words_for()})
    assert list(result.failures) == [0] and "no token is left" in result.failures[0]
    assert result.tokens.tolist() == [free]


def test_an_engine_that_asks_for_masks_needs_none_for_a_legal_best_token(driver: Driver) -> None:
    if not driver.engine.info.asks_for_masks:
        pytest.skip("the loop fills its masks")
    free = [alone(driver, PROMPTS[slot], 1)[0] for slot in (0, 1)]
    other = next(token for token in (3, 40) if token != free[1])
    _, plan = both(driver)
    result, filled = run_asking(driver, plan, {0: words_for(free[0], 5), 1: words_for(other)})
    assert result.tokens.tolist() == [free[0], other] and filled == [1]


def test_a_drawn_token_needs_the_whole_mask(driver: Driver) -> None:
    if not driver.engine.info.asks_for_masks:
        pytest.skip("the loop fills its masks")
    sequence = driver.sequence(0, PROMPTS[0], temperature=1.0, seed=7)
    plan = driver.plan([driver.chunk(sequence)], inits=[sequence])
    result, filled = run_asking(driver, plan, {0: words_for(*range(VOCAB_SIZE))})
    assert len(result.tokens) == 1 and filled == [0]


def test_the_end_is_held_back_though_the_grammar_would_take_it(driver: Driver) -> None:
    """`min_tokens` is the mask's to keep: a look at one token does not decide."""
    if not driver.engine.info.asks_for_masks:
        pytest.skip("the loop fills its masks")
    free = alone(driver, PROMPTS[0], 1)[0]
    sequence = driver.sequence(0, PROMPTS[0], min_tokens=2, stop_token_ids=(free,))
    plan = driver.plan([driver.chunk(sequence)], inits=[sequence])
    result, filled = run_asking(driver, plan, {0: words_for(free, 3)})
    assert result.tokens.tolist() == [free] and filled == [0]
