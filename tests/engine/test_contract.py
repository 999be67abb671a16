"""What every engine must do, whatever runs underneath: one suite over the reference and the native engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from engine.random_models import SPECS, VOCAB_SIZE, random_weights
from engine.step_driver import Driver, Segment, Sequence, tokens_of
from twinpath.contracts import Engine
from twinpath.engine.cpu import CpuEngine, CpuOptions
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_memory import ReferenceOptions
from twinpath.errors import EngineError
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights
from twinpath.types import PENDING_TOKEN, StepResult

#: Its embedding row is not finite (see `model`): whoever uses it must fail alone. Nobody samples it (see `driver`).
POISON = VOCAB_SIZE - 1
PROMPTS = {0: list(range(3, 40)), 1: [90, 17, 4], 2: [int(i) for i in np.random.default_rng(3).integers(3, 150, 26)]}
PAGE_SIZE = 16
NUM_PAGES = 48
Build = Callable[[ModelSpec, Weights], Engine]


def _reference(depth: int, device: str = "cpu") -> Build:
    def build(spec: ModelSpec, weights: Weights) -> Engine:
        options = ReferenceOptions(
            device="cuda" if device == "cuda" else "cpu",
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            max_slots=6,
            max_step_tokens=128,
            depth=depth,
        )
        return ReferenceEngine(spec, weights, options)

    return build


def _native(isa: str) -> Build:
    def build(spec: ModelSpec, weights: Weights) -> Engine:
        options = CpuOptions(
            threads=2, isa=isa, page_size=PAGE_SIZE, num_pages=NUM_PAGES, max_slots=6, max_step_tokens=128
        )
        return CpuEngine(spec, weights, options)

    return build


ENGINES = [
    pytest.param(_reference(1), id="reference-1"),
    pytest.param(_reference(3), id="reference-3"),
    pytest.param(_native("auto"), id="native"),
    pytest.param(_native("portable"), id="native-portable"),
    pytest.param(_reference(3, "cuda"), id="reference-cuda-3", marks=pytest.mark.gpu),
]


@pytest.fixture(scope="module")
def model() -> tuple[ModelSpec, Weights]:
    """Sliding and full layers, so that stale or misplaced keys matter, and one poisoned token."""
    weights = random_weights(SPECS["qwen2"])
    weights["embed"].data[POISON].view(np.float32)[:] = np.nan
    return SPECS["qwen2"], weights


@pytest.fixture(params=ENGINES)
def build(request: pytest.FixtureRequest) -> Build:
    chosen: Build = request.param
    return chosen


@pytest.fixture
def driver(build: Build, model: tuple[ModelSpec, Weights]) -> Iterator[Driver]:
    engine = build(*model)
    yield Driver(engine, logit_bias={POISON: -1000.0})
    engine.close()


def alone(driver: Driver, prompt: list[int], num_tokens: int, **sampling: object) -> list[int]:
    """What one request gets when nobody else is there: prompt in one step, then token by token."""
    sequence = driver.sequence(5, prompt, **sampling)
    outputs = driver.generate(sequence, num_tokens)
    driver.free(sequence)
    return outputs


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
        assert np.isfinite(residual).all()
        driver.run([segment], layers=(1, info.num_layers), residual=residual)
        inits = []
    assert sequence.outputs == right


def test_a_release_leaves_the_slot_to_the_next_request(driver: Driver) -> None:
    right = alone(driver, PROMPTS[1], 3)
    first = driver.sequence(0, PROMPTS[0])
    driver.run([driver.chunk(first)], inits=[first], releases=[first])
    driver.free(first)
    second = driver.sequence(0, PROMPTS[1])
    assert driver.generate(second, 3) == right


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


SAMPLED = {
    "temperature": 1.3,
    "top_p": 0.95,
    "seed": 77,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
}


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_resuming_after_preemption_changes_nothing(driver: Driver, sampling: dict[str, object]) -> None:
    right = alone(driver, PROMPTS[2], 10, **sampling)
    sequence = driver.sequence(0, PROMPTS[2], **sampling)
    driver.generate(sequence, 4)
    driver.free(sequence)
    intruder = driver.sequence(1, PROMPTS[0])
    driver.run([driver.chunk(intruder)], inits=[intruder], releases=[sequence])
    sequence.slot = 3
    assert driver.generate(sequence, 10, chunk_tokens=9) == right


def test_an_interrupted_plan_counts_for_nothing_and_runs_again(driver: Driver) -> None:
    right = {0: alone(driver, PROMPTS[0], 5), 1: alone(driver, PROMPTS[1] * 30, 3)}
    decoding, prefilling = driver.sequence(0, PROMPTS[0]), driver.sequence(1, PROMPTS[1] * 30)
    driver.generate(decoding, 4)
    segments, both = [driver.chunk(decoding), driver.chunk(prefilling)], [decoding, prefilling]
    (result,) = interrupt_first(driver, [(segments, both)])
    assert (result.tokens.tolist(), result.counts.tolist(), result.failures) == ([], [0, 0], {})
    driver.run(segments, inits=both)
    while len(prefilling.outputs) < 3:
        driver.run([driver.chunk(prefilling)])
    assert {0: decoding.outputs, 1: prefilling.outputs} == right


def test_an_interrupt_also_stops_what_is_queued_behind(driver: Driver) -> None:
    if driver.engine.info.depth == 1:
        pytest.skip("nothing can be queued at depth 1")
    right = alone(driver, PROMPTS[1] * 30, 2)
    sequence = driver.sequence(0, PROMPTS[1] * 30)
    first, second = driver.chunk(sequence), driver.pending(sequence)
    for result in interrupt_first(driver, [([first], [sequence]), ([second], [])]):
        assert result.interrupted
        assert result.tokens.tolist() == []
    assert driver.run([first], inits=[sequence]).tokens.tolist() == right[:1]
    assert driver.run([second]).tokens.tolist() == right[1:]


def interrupt_first(driver: Driver, parts: list[tuple[list[Segment], list[Sequence]]]) -> list[StepResult]:
    """Submit plans and interrupt the first, until the interrupt overtakes that step; the results of that try.

    Every try binds the slots anew, so one that came too late leaves nothing behind.
    """
    for _ in range(200):
        plans = [driver.plan(segments, inits=inits) for segments, inits in parts]
        for plan in plans:
            driver.engine.submit(plan)
        driver.engine.interrupt(plans[0].step_id)
        results = [driver.result() for _ in plans]
        if results[0].interrupted:
            return results
    pytest.fail("200 interrupts and none of them stopped a step")


def test_interrupts_of_unknown_and_finished_steps_do_nothing(driver: Driver) -> None:
    sequence = driver.sequence(0, PROMPTS[0])
    driver.run([driver.chunk(sequence)], inits=[sequence])
    driver.engine.interrupt(driver.num_steps)
    driver.engine.interrupt(driver.num_steps + 1)
    assert not driver.run([driver.chunk(sequence)]).interrupted


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
