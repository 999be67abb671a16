"""What every engine must do when one request of a step is bad: only that one fails."""

from __future__ import annotations

import pytest

from engine.engines import POISON, PROMPTS, alone
from engine.random_models import VOCAB_SIZE
from engine.step_driver import Driver, tokens_of


def test_a_slot_without_a_request_fails_only_its_segment(driver: Driver) -> None:
    right = alone(driver, PROMPTS[1], 1)
    bound, unbound = driver.sequence(0, PROMPTS[1]), driver.sequence(1, PROMPTS[2])
    result = driver.run([driver.chunk(unbound), driver.chunk(bound)], inits=[bound])
    assert list(result.failures) == [0]
    assert tokens_of(result) == [[], right]


def test_releasing_an_unknown_slot_is_no_error(driver: Driver) -> None:
    sequence, stranger = driver.sequence(0, PROMPTS[1]), driver.sequence(4, [])
    assert driver.run([driver.chunk(sequence)], inits=[sequence], releases=[stranger]).failures == {}


@pytest.mark.parametrize("bad", [[VOCAB_SIZE], [-7], [5, POISON, 9]], ids=["beyond", "negative", "nan"])
def test_a_bad_request_fails_alone(driver: Driver, bad: list[int]) -> None:
    right = {slot: alone(driver, prompt, 4) for slot, prompt in PROMPTS.items()}
    sequences = [driver.sequence(slot, prompt) for slot, prompt in PROMPTS.items()]
    wrong = driver.sequence(4, bad)
    everyone = [sequences[0], wrong, *sequences[1:]]
    result = driver.run([driver.chunk(s) for s in everyone], inits=everyone, releases=[wrong])
    assert list(result.failures) == [1] and result.failures[1]
    assert result.counts.tolist() == [1, 0, 1, 1]
    # Its pages go to somebody else, who must not meet what it left there.
    driver.free(wrong)
    heir = driver.sequence(4, PROMPTS[0])
    assert driver.generate(heir, 4) == right[0]
    for sequence in sequences:
        while len(sequence.outputs) < 4:
            driver.run([driver.chunk(sequence)])
        assert sequence.outputs == right[sequence.slot]


def test_failing_prompt_logprobs_leave_the_others_their_rows(driver: Driver) -> None:
    right = [alone(driver, PROMPTS[slot], 1) for slot in (0, 1)]
    before, after = driver.sequence(0, PROMPTS[0], prompt_logprobs=0), driver.sequence(1, PROMPTS[1])
    wrong = driver.sequence(2, [5, POISON, 9], prompt_logprobs=0)
    everyone = [before, wrong, after]
    result = driver.run([driver.chunk(s) for s in everyone], inits=everyone)
    assert list(result.failures) == [1]
    assert list(result.prompt_logprobs) == [0]
    assert tokens_of(result) == [right[0], [], right[1]]


def test_a_plan_may_consist_of_failures(driver: Driver) -> None:
    wrong = driver.sequence(0, [VOCAB_SIZE])
    result = driver.run([driver.chunk(wrong)], inits=[wrong])
    assert (list(result.failures), result.counts.tolist(), result.tokens.tolist()) == ([0], [0], [])


def test_a_missing_page_fails_only_its_segment(driver: Driver) -> None:
    sequences = [driver.sequence(0, PROMPTS[0]), driver.sequence(1, PROMPTS[1])]
    plan = driver.plan([driver.chunk(s) for s in sequences], inits=sequences)
    plan.block_tables[0, 2] = -1
    driver.engine.submit(plan)
    result = driver.result()
    assert list(result.failures) == [0]
    assert result.counts.tolist() == [0, 1]


def test_what_is_queued_behind_a_failure_fails_too(driver: Driver) -> None:
    if driver.engine.info.depth == 1:
        pytest.skip("nothing can be queued at depth 1")
    wrong = driver.sequence(0, [5, POISON])
    driver.engine.submit(driver.plan([driver.chunk(wrong)], inits=[wrong]))
    driver.engine.submit(driver.plan([driver.pending(wrong)]))
    first, second = driver.result(), driver.result()
    assert list(first.failures) == [0]
    assert second.failures == first.failures
    assert second.counts.tolist() == [0]
