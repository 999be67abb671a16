"""What every engine must do when steps are interrupted, preempted and reordered: answers do not change."""

from __future__ import annotations

import numpy as np
import pytest

from engine.engines import POISON, PROMPTS, SAMPLED, alone
from engine.step_driver import Driver, Segment, Sequence, tokens_of
from twinpath.types import StepResult


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


@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_changes_an_answer(driver: Driver, seed: int) -> None:
    """Random chunks, company, order, preemption, slots and interrupts: everybody gets what they would get alone."""
    rng = np.random.default_rng(seed)
    num_tokens = 6
    prompts = [rng.integers(3, POISON, int(rng.integers(1, 60))).tolist() for _ in range(5)]
    settings = [SAMPLED | {"seed": i} if i % 2 else {} for i in range(5)]
    right = [alone(driver, prompts[i], num_tokens, **settings[i]) for i in range(5)]
    sequences = [
        driver.sequence(i, prompt, **sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts, settings, strict=True))
    ]
    unbound = list(sequences)
    for _ in range(400):
        live = [s for s in sequences if len(s.outputs) < num_tokens]
        if not live:
            break
        chosen = [live[i] for i in rng.permutation(len(live))[: int(rng.integers(1, len(live) + 1))]]
        if rng.random() < 0.15:
            victim = chosen.pop()
            driver.free(victim)
            unbound.append(victim)
            taken = {s.slot for s in sequences} - {victim.slot}
            victim.slot = int(rng.choice([slot for slot in range(driver.engine.info.max_slots) if slot not in taken]))
        if not chosen:
            continue
        inits = [s for s in chosen if s in unbound]
        unbound = [s for s in unbound if s not in inits]
        plan_may_be_interrupted(driver, chosen, inits, rng)
    assert [s.outputs for s in sequences] == right


def plan_may_be_interrupted(
    driver: Driver, chosen: list[Sequence], inits: list[Sequence], rng: np.random.Generator
) -> None:
    segments = [driver.chunk(s, int(rng.integers(1, 25))) for s in chosen]
    plan = driver.plan(segments, inits=inits)
    driver.engine.submit(plan)
    if rng.random() < 0.2:
        driver.engine.interrupt(plan.step_id)
    result = driver.result()
    if result.interrupted:
        driver.run(segments, inits=chosen)
        return
    for segment, tokens in zip(segments, tokens_of(result), strict=True):
        segment.sequence.tokens.extend(tokens)
