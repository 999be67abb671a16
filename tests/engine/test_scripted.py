"""The scripted engine says its script, obeys its cues, and refuses a scheduler's mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from twinpath.engine.scripted import (
    END_ID,
    Script,
    ScriptedEngine,
    ScriptedShape,
    ScriptError,
    ScriptFile,
    load_script,
)
from twinpath.errors import ModelLoadError
from twinpath.types import PENDING_TOKEN, SamplingParams, SlotInit, StepPlan, StepResult

SAMPLING = SamplingParams(max_tokens=100)


def engine_of(*scripts: Script, **shape: int) -> ScriptedEngine:
    return ScriptedEngine(ScriptFile(scripts=scripts, engine=ScriptedShape(page_size=4, **shape)))


def init(prompt: bytes, *outputs: int, slot: int = 0, sampling: SamplingParams = SAMPLING) -> SlotInit:
    return SlotInit(slot, sampling, np.array([*prompt, *outputs], np.int32), len(prompt))


def plan(
    step_id: int,
    start: int,
    tokens: list[int],
    pages: list[int],
    *inits: SlotInit,
    slot: int = 0,
    releases: tuple[int, ...] = (),
) -> StepPlan:
    """One segment that samples."""
    return StepPlan(
        step_id=step_id,
        slots=np.array([slot], np.int32),
        starts=np.array([start], np.int32),
        lengths=np.array([len(tokens)], np.int32),
        sample=np.array([True]),
        tokens=np.array(tokens, np.int32),
        block_tables=np.array([pages], np.int32),
        layer_begin=0,
        layer_end=4,
        inits=inits,
        releases=releases,
    )


def run(engine: ScriptedEngine, step: StepPlan) -> StepResult:
    engine.submit(step)
    result = engine.poll()
    assert result is not None and result.step_id == step.step_id
    return result


def test_matching_script_is_said_in_its_chunks_and_then_the_end_for_ever() -> None:
    engine = engine_of(Script(match="other", text="no"), Script(match="France", text="Paris", chunks=(1, 3)))
    prompt = b"France"
    steps, tokens = [], list(prompt)
    result = run(engine, plan(0, 0, tokens, [0, 1, 2], init(prompt)))
    for step_id in range(1, 4):
        steps.append(result.tokens.tolist())
        new, start = steps[-1], len(tokens)
        tokens += new
        result = run(engine, plan(step_id, start, new, [0, 1, 2, 3]))
    assert steps == [[80], [97, 114, 105], [115]]
    assert result.tokens.tolist() == [END_ID] * 3
    assert engine.num_tokens == 8


def test_scripts_marked_once_are_used_in_order() -> None:
    engine = engine_of(Script(text="1", once=True), Script(text="2", once=True))
    said = [run(engine, plan(n, 0, [120], [0], init(b"x"), releases=(0,))).tokens.tolist() for n in range(3)]
    assert said == [[ord("1")], [ord("2")], [ord("o")]]


def test_a_resumed_request_goes_on_where_it_was() -> None:
    engine = engine_of(Script(text="abc", once=True))
    assert run(engine, plan(0, 0, [120], [0], init(b"x"), releases=(0,))).tokens.tolist() == [97]
    resumed = init(b"x", 97)
    assert run(engine, plan(1, 0, [120, 97], [5], resumed)).tokens.tolist() == [98]


def test_plans_ahead_run_in_order_and_pending_tokens_are_the_last_sampled() -> None:
    engine = engine_of(Script(text="abc"), depth=3)
    engine.submit(plan(0, 0, [120], [0], init(b"x")))
    engine.submit(plan(1, 1, [PENDING_TOKEN], [0]))
    engine.submit(plan(2, 2, [PENDING_TOKEN], [0]))
    with pytest.raises(ScriptError, match="depth is 3"):
        engine.submit(plan(3, 3, [PENDING_TOKEN], [0]))
    results = [engine.poll() for _ in range(3)]
    assert [r.tokens.tolist() for r in results if r] == [[97], [98], [99]]
    assert engine.poll() is None


def test_an_interrupted_plan_and_those_behind_it_do_nothing() -> None:
    engine = engine_of(Script(text="abc"), depth=2)
    engine.submit(plan(0, 0, [120], [0], init(b"x")))
    engine.submit(plan(1, 1, [PENDING_TOKEN], [0]))
    engine.interrupt(0)
    engine.interrupt(99)
    results = [engine.poll() for _ in range(2)]
    assert [r.interrupted and not r.tokens.size for r in results if r] == [True, True]
    assert run(engine, plan(2, 0, [120], [0], init(b"x"))).tokens.tolist() == [97]


def test_failure_on_cue_lasts_until_the_slot_is_bound_again() -> None:
    engine = engine_of(Script(match="bad", text="abc", fail_at=1))
    assert run(engine, plan(0, 0, list(b"bad"), [0], init(b"bad"))).tokens.tolist() == [97]
    for step_id in (1, 2):
        assert run(engine, plan(step_id, 3, [97], [0])).failures == {0: "scripted failure"}
    assert run(engine, plan(3, 0, list(b"good"), [0], init(b"good"))).tokens.tolist() == [ord("o")]


def test_exception_on_cue() -> None:
    engine = engine_of(Script(text="abc", raise_at=0))
    engine.submit(plan(0, 0, [120], [0], init(b"x")))
    with pytest.raises(RuntimeError, match="scripted exception"):
        engine.poll()


def test_log_probabilities_follow_the_formula() -> None:
    engine = engine_of(Script(text="a"))
    sampling = SamplingParams(max_tokens=9, logprobs=1, prompt_logprobs=0)
    result = run(engine, plan(0, 0, list(b"xyz"), [0], init(b"xyz", sampling=sampling)))
    (entry,) = result.logprobs[0]
    assert (entry.token_id, entry.logprob, entry.top) == (97, -(1 + 97 % 7) / 8, ((97, -(1 + 97 % 7) / 8),))
    assert [e.token_id for e in result.prompt_logprobs[0]] == list(b"yz")


PROMPT = list(b"abcdef")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (plan(1, 6, [111], [0, 2]), "not its own"),
        (plan(1, 6, [111], [1, 0]), "not its own"),
        (plan(1, 7, [107], [0, 1]), "reaches position 8"),
        (plan(1, 6, [99], [0, 1]), "differ from the slot's history"),
        (plan(1, 6, [111], [0]), "does not cover position 6"),
        (plan(1, 6, [111], [0, -1]), "does not cover position 6"),
        (plan(1, 6, [111], [0, 1], slot=3), "slot 3 is not initialised"),
        (plan(1, 4, [101, 102], [0, 1]), "sampled position 6, but the slot knows 7"),
    ],
    ids=["another page", "pages swapped", "row skipped", "wrong token", "page missing", "hole", "no slot", "twice"],
)
def test_a_schedulers_mistake_is_a_script_error(second: StepPlan, message: str) -> None:
    engine = engine_of()
    run(engine, plan(0, 0, PROMPT, [0, 1], init(bytes(PROMPT))))
    engine.submit(second)
    with pytest.raises(ScriptError, match=message):
        engine.poll()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid"),
        ('{"scripts": [{"txet": "typo"}]}', "txet"),
        ('{"engine": {"depth": "deep"}}', "depth"),
        ('{"engine": {"num_pages": 0}}', "num_pages"),
        ('{"engine": {"page_size": -16}}', "page_size"),
        ('{"engine": {"layers": 0}}', "layers"),
        ('{"engine": {"max_slots": 99999999999}}', "max_slots"),
        ('{"engine": {"step_ms": -1}}', "step_ms"),
        ('{"default": {"chunks": []}}', "chunks"),
        ('{"default": {"chunks": [1, 0]}}', "chunks"),
        (None, "cannot read"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "script.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ModelLoadError, match=message) as failure:
        load_script(path)
    assert str(path) in str(failure.value) and "\n" not in str(failure.value)
