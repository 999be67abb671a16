"""What every engine must do, whatever runs underneath: order, feedback, batches, layer slices, log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from engine.engines import PROMPTS, Build, alone
from engine.random_models import VOCAB_SIZE
from engine.step_driver import Driver, Segment
from twinpath.errors import EngineError
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights
from twinpath.types import PENDING_TOKEN


def test_nothing_outstanding_gives_none_at_once(driver: Driver) -> None:
    assert driver.engine.poll(None) is None
    assert driver.engine.poll(0) is None


def test_results_come_in_submission_order(driver: Driver) -> None:
    plans = [
        driver.plan([driver.chunk(sequence)], inits=[sequence])
        for slot, prompt in PROMPTS.items()
        for sequence in [driver.sequence(slot, prompt)]
    ]
    depth = driver.engine.info.depth
    for first in range(0, len(plans), depth):
        group = plans[first : first + depth]
        assert [driver.engine.submit(plan) for plan in group] == [plan.step_id for plan in group]
        assert [driver.result().step_id for _ in group] == [plan.step_id for plan in group]


def test_more_plans_than_the_depth_are_refused(driver: Driver) -> None:
    sequence = driver.sequence(0, PROMPTS[0])
    plans = [driver.plan([driver.chunk(sequence, 4)], inits=[sequence]) for _ in range(driver.engine.info.depth + 1)]
    for plan in plans[:-1]:
        driver.engine.submit(plan)
    with pytest.raises(ValueError, match="depth"):
        driver.engine.submit(plans[-1])
    for plan in plans[:-1]:
        assert driver.result().step_id == plan.step_id


def test_tokens_feed_back_inside_the_engine(driver: Driver) -> None:
    right = alone(driver, PROMPTS[0], 9)
    sequence = driver.sequence(0, PROMPTS[0])
    outputs: list[int] = []
    num_submitted = 0
    while len(outputs) < 9:
        while num_submitted < 9 and num_submitted - len(outputs) < driver.engine.info.depth:
            segment = driver.pending(sequence) if num_submitted else driver.chunk(sequence)
            driver.engine.submit(driver.plan([segment], inits=[] if num_submitted else [sequence]))
            num_submitted += 1
        outputs += driver.result().tokens.tolist()
    assert outputs == right


def test_a_segment_may_hold_known_tokens_and_a_pending_one(driver: Driver) -> None:
    right = alone(driver, PROMPTS[1], 3)
    sequence = driver.sequence(0, PROMPTS[1])
    driver.generate(sequence, 2)
    segment = Segment(sequence, len(sequence.tokens) - 2, [sequence.tokens[-2], PENDING_TOKEN], sample=True)
    assert driver.run([segment]).tokens.tolist() == right[2:]


def test_rows_of_many_requests_in_one_plan_do_not_meet(driver: Driver) -> None:
    right = {slot: alone(driver, prompt, 6) for slot, prompt in PROMPTS.items()}
    sequences = {slot: driver.sequence(slot, prompt) for slot, prompt in PROMPTS.items()}
    inits = list(sequences.values())
    for step in range(20):
        # Different chunk sizes: some decode while others still read their prompt.
        segments = [driver.chunk(s, 4 + 3 * slot) for slot, s in sequences.items() if len(s.outputs) < 6]
        if not segments:
            break
        driver.run(segments[step % 2 :] + segments[: step % 2], inits=inits)
        inits = []
    assert {slot: s.outputs for slot, s in sequences.items()} == right


def test_two_layer_slices_equal_the_whole(driver: Driver) -> None:
    right = alone(driver, PROMPTS[2], 5)
    sequence = driver.sequence(0, PROMPTS[2])
    inits = [sequence]
    info = driver.engine.info
    while len(sequence.outputs) < 5:
        segment = driver.chunk(sequence, 11)
        residual = np.full((len(segment.tokens), info.hidden_size), np.nan, dtype=np.float32)
        first = driver.run([segment], inits=inits, layers=(0, 1), residual=residual)
        assert first.tokens.tolist() == []
        assert info.keeps_residual or np.isfinite(residual).all()
        driver.run([segment], layers=(1, info.num_layers), residual=residual)
        inits = []
    assert sequence.outputs == right


def test_a_plan_that_runs_out_of_time_goes_on_beside_other_plans(driver: Driver) -> None:
    """An engine that does not pause runs it at once."""
    right, stream = alone(driver, PROMPTS[2], 1), alone(driver, PROMPTS[1], 5)
    info = driver.engine.info
    other = driver.sequence(1, PROMPTS[1])
    driver.generate(other, 1)
    sequence = driver.sequence(0, PROMPTS[2])
    segment = driver.chunk(sequence)
    residual = np.zeros((len(segment.tokens), info.hidden_size), np.float32)
    result = driver.run([segment], inits=[sequence], residual=residual, budget_ms=0.0)
    assert info.pauses == (result.paused_layer is not None)
    while result.paused_layer is not None:
        assert result.tokens.tolist() == [] and 0 <= result.paused_layer < info.num_layers
        if len(other.outputs) < 5:
            driver.run([driver.chunk(other)])
        result = driver.run([segment], residual=residual, budget_ms=0.01, resume=True)
    driver.generate(other, 5)
    assert sequence.outputs == right and other.outputs == stream


def test_only_what_is_paused_goes_on(driver: Driver) -> None:
    info = driver.engine.info
    sequence = driver.sequence(0, PROMPTS[2])
    segment = driver.chunk(sequence)
    residual = np.zeros((len(segment.tokens), info.hidden_size), np.float32)
    with pytest.raises(ValueError, match="budget"):
        driver.engine.submit(driver.plan([segment], inits=[sequence], residual=residual, resume=True))
    with pytest.raises(ValueError, match="residual"):
        driver.engine.submit(driver.plan([segment], inits=[sequence], budget_ms=1.0))
    if info.pauses:
        driver.engine.submit(driver.plan([segment], inits=[sequence], residual=residual, budget_ms=1.0, resume=True))
        with pytest.raises(EngineError, match="not paused"):
            driver.result()


def test_a_release_leaves_the_slot_to_the_next_request(driver: Driver) -> None:
    right = alone(driver, PROMPTS[1], 3)
    first = driver.sequence(0, PROMPTS[0])
    driver.run([driver.chunk(first)], inits=[first], releases=[first])
    driver.free(first)
    second = driver.sequence(0, PROMPTS[1])
    assert driver.generate(second, 3) == right


def test_progress_grows_with_every_layer(driver: Driver) -> None:
    sequence = driver.sequence(0, PROMPTS[0])
    before = driver.engine.progress()
    driver.run([driver.chunk(sequence)], inits=[sequence])
    assert driver.engine.progress() >= before + driver.engine.info.num_layers


def test_logprobs_of_a_greedy_token(driver: Driver) -> None:
    sequence = driver.sequence(0, PROMPTS[0], logprobs=VOCAB_SIZE)
    result = driver.run([driver.chunk(sequence)], inits=[sequence])
    (entry,) = result.logprobs[0]
    assert entry.token_id == entry.top[0][0] == result.tokens[0]
    assert entry.logprob == entry.top[0][1]
    assert [pair[1] for pair in entry.top] == sorted((pair[1] for pair in entry.top), reverse=True)
    assert sum(np.exp(pair[1]) for pair in entry.top) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("chunk_tokens", [None, 10, 1])
def test_prompt_logprobs_have_one_entry_per_prompt_token_but_the_first(
    driver: Driver, chunk_tokens: int | None
) -> None:
    prompt = PROMPTS[2]
    sequence = driver.sequence(0, prompt, prompt_logprobs=2)
    entries, inits = [], [sequence]
    while len(sequence.outputs) < 3:  # decode rows add nothing
        entries += driver.run([driver.chunk(sequence, chunk_tokens)], inits=inits).prompt_logprobs.get(0, [])
        inits = []
    assert [entry.token_id for entry in entries] == prompt[1:]
    assert all(len(entry.top) == 2 for entry in entries)
    for end in (5, 20):
        # The same distribution as the one a shorter prompt is sampled from.
        shorter = driver.sequence(1, prompt[:end], logprobs=2)
        (entry,) = driver.run([driver.chunk(shorter)], inits=[shorter]).logprobs[0]
        for (token, logprob), (right_token, right_logprob) in zip(entries[end - 1].top, entry.top, strict=True):
            assert token == right_token
            assert logprob == pytest.approx(right_logprob, abs=1e-4)


def test_submitting_to_a_closed_engine_is_an_error(model: tuple[ModelSpec, Weights], build: Build) -> None:
    engine = build(*model)
    driver = Driver(engine)
    sequence = driver.sequence(0, PROMPTS[0])
    plan = driver.plan([driver.chunk(sequence)], inits=[sequence])
    engine.submit(plan)
    engine.close()
    engine.close()
    with pytest.raises(EngineError):
        engine.submit(plan)
