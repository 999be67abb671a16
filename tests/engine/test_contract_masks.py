"""Masked segments on every engine: only legal tokens are sampled, others are not touched, a mask may come late."""

from __future__ import annotations

import dataclasses

import numpy as np

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
