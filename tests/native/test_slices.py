"""Steps that pause between tasks: the same bits as in one go, whatever runs in between."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from engine.random_models import SPECS
from native.test_step import ISAS, OTHER, PROMPT, build, ints, run
from twinpath.errors import EngineError
from twinpath.native.cores import usable_cores
from twinpath.native.library import NativeLibrary
from twinpath.native.model import NativeModel, NativeSlice, PausedAt
from twinpath.types import Float32s

#: More calls than a tiny model has tasks: not one of them may be without progress.
MOST_CALLS = 20_000
PAGES, OTHERS, STRANGERS = [5, 50, 2, 33, 19, 7], [41, 9, 12], [60, 1, 30]


def go_on(
    model: NativeModel, piece: NativeSlice, tokens: list[int], pages: list[int], resume: bool, budget_ms: float = 0.0
) -> tuple[Float32s, Float32s] | PausedAt | None:
    """Time for one task a thread, or `budget_ms`, of a prompt's step."""
    sample, keep = np.ones(1, np.uint8), np.ones(1, np.uint8)
    return model.step_slice(
        piece, budget_ms, ints(0), ints(len(tokens)), sample, ints(*tokens), np.array([pages], np.int32),
        resume=resume, keep_hidden=keep,
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["smollm2", "gemma3", "qwen2"])
def test_pausing_after_every_task_changes_no_bit(library: NativeLibrary, name: str, isa: str, threads: int) -> None:
    model = build(library, name, isa, threads)
    keep = np.ones(1, np.uint8)
    whole = [run(model, [(0, tokens, PAGES)], keep_hidden=keep) for tokens in (PROMPT, OTHER)]
    beside = run(model, [(0, OTHER[:1], STRANGERS)])[0]
    pieces, layers = [model.open_slice() for _ in range(2)], [0, 0]
    found: list[tuple[Float32s, Float32s] | None] = [None, None]
    for call in range(MOST_CALLS):
        for i, tokens, pages in ((0, PROMPT, PAGES), (1, OTHER, OTHERS)):
            if found[i] is None:
                outcome = go_on(model, pieces[i], tokens, pages, resume=call > 0)
                assert outcome is not None
                if isinstance(outcome, PausedAt):
                    assert layers[i] <= outcome.layer < SPECS[name].num_layers
                    layers[i] = outcome.layer
                else:
                    found[i] = outcome
        np.testing.assert_array_equal(run(model, [(0, OTHER[:1], STRANGERS)])[0], beside)
        if None not in found:
            break
    assert call > SPECS[name].num_layers
    for got, right in zip(found, whole, strict=True):
        assert got is not None
        np.testing.assert_array_equal(got[0], right[0])
        np.testing.assert_array_equal(got[1], right[1])
    # Its keys and values too: the next token sees all of them.
    after = run(model, [(len(PROMPT), [3], PAGES)])[0]
    np.testing.assert_array_equal(after, run(build(library, name, isa), [(0, [*PROMPT, 3], PAGES)])[0])
    for piece in pieces:
        model.close_slice(piece)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["smollm2", "gemma3", "qwen2"])
def test_going_on_beside_other_steps_changes_no_bit(library: NativeLibrary, name: str, threads: int) -> None:
    model = build(library, name, threads=threads)
    keep = np.ones(1, np.uint8)
    whole = run(model, [(0, PROMPT, PAGES)], keep_hidden=keep)
    stranger = run(model, [(0, OTHER, STRANGERS)])[0]
    piece = model.open_slice()
    layers = [0]
    outcome: tuple[Float32s, Float32s] | PausedAt | None = go_on(model, piece, PROMPT, PAGES, resume=False)
    for _ in range(MOST_CALLS):
        assert outcome is not None
        if not isinstance(outcome, PausedAt):
            break
        layers.append(outcome.layer)
        np.testing.assert_array_equal(run(model, [(0, OTHER, STRANGERS)], beside=piece)[0], stranger)
        # One task more, and another prompt's step that nothing goes on beside.
        outcome = go_on(model, piece, PROMPT, PAGES, resume=True)
        np.testing.assert_array_equal(run(model, [(0, OTHER, STRANGERS)])[0], stranger)
    assert isinstance(outcome, tuple)
    np.testing.assert_array_equal(outcome[0], whole[0])
    np.testing.assert_array_equal(outcome[1], whole[1])
    after = run(model, [(len(PROMPT), [3], PAGES)])[0]
    np.testing.assert_array_equal(after, run(build(library, name), [(0, [*PROMPT, 3], PAGES)])[0])
    model.close_slice(piece)


def test_only_outputs_are_left_to_the_slice_when_there_was_time(library: NativeLibrary) -> None:
    model = build(library, threads=2)
    right = run(model, [(0, PROMPT, PAGES)])[0]
    piece = model.open_slice()
    outcome: tuple[Float32s, Float32s] | PausedAt | None = go_on(model, piece, PROMPT, PAGES, resume=False)
    num_steps = 0
    while isinstance(outcome, PausedAt):
        num_steps += 1
        assert num_steps < MOST_CALLS
        run(model, [(0, OTHER, OTHERS)], beside=piece)
        if num_steps % 50 == 0:
            outcome = go_on(model, piece, PROMPT, PAGES, resume=True)
    assert isinstance(outcome, tuple) and piece.call is None
    np.testing.assert_array_equal(outcome[0], right)
    model.close_slice(piece)


def test_a_slice_gets_on_beside_processes_that_want_all_cores(library: NativeLibrary) -> None:
    """The thread that goes on gives way to everybody; what it holds would stand still for seconds."""
    model = build(library, threads=2)
    right = run(model, [(0, PROMPT, PAGES)])[0]
    stranger = run(model, [(0, OTHER, OTHERS)])[0]
    piece = model.open_slice()
    with ExitStack() as stack:
        for _ in range(usable_cores()):
            script = "print(flush=True)\nwhile True: pass"
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE))
            stack.callback(busy.kill)
            assert busy.stdout is not None and busy.stdout.readline()
        outcome: tuple[Float32s, Float32s] | PausedAt | None = go_on(model, piece, PROMPT, PAGES, resume=False)
        for _ in range(MOST_CALLS):
            if not isinstance(outcome, PausedAt):
                break
            np.testing.assert_array_equal(run(model, [(0, OTHER, OTHERS)], beside=piece)[0], stranger)
            outcome = go_on(model, piece, PROMPT, PAGES, resume=True, budget_ms=1.0)
    assert isinstance(outcome, tuple)
    np.testing.assert_array_equal(outcome[0], right)
    model.close_slice(piece)


def test_a_model_closes_while_something_may_go_on(library: NativeLibrary) -> None:
    model = build(library, threads=2)
    piece = model.open_slice()
    assert isinstance(go_on(model, piece, PROMPT, PAGES, resume=False), PausedAt)
    run(model, [(0, OTHER, OTHERS)], beside=piece)
    model.close_slice(piece)
    model.close()


def test_with_time_enough_it_does_not_pause(library: NativeLibrary) -> None:
    model = build(library)
    piece = model.open_slice()
    outcome = go_on(model, piece, PROMPT, PAGES, resume=False, budget_ms=1e6)
    assert isinstance(outcome, tuple)
    np.testing.assert_array_equal(outcome[0], run(model, [(0, PROMPT, OTHERS + STRANGERS)])[0])
    model.close_slice(piece)


def test_without_resume_and_with_other_threads_it_begins_again(library: NativeLibrary) -> None:
    model = build(library, threads=2)
    right = run(model, [(0, PROMPT, PAGES)])[0]
    piece = model.open_slice()
    for resume in (False, True, True, False, True):
        assert isinstance(go_on(model, piece, OTHER, OTHERS, resume), PausedAt)
    assert isinstance(go_on(model, piece, PROMPT, PAGES, resume=False), PausedAt)
    model.set_threads(3)
    outcome = go_on(model, piece, PROMPT, PAGES, resume=True, budget_ms=1e6)
    assert isinstance(outcome, tuple)
    np.testing.assert_array_equal(outcome[0], right)
    model.close_slice(piece)


def test_a_cancelled_slice_begins_again(library: NativeLibrary) -> None:
    model = build(library, threads=2)
    right = run(model, [(0, PROMPT, PAGES)])[0]
    piece = model.open_slice()
    assert isinstance(go_on(model, piece, PROMPT, PAGES, resume=False), PausedAt)
    model.cancel()
    assert go_on(model, piece, PROMPT, PAGES, resume=True) is None
    model.cancel(False)
    outcome = go_on(model, piece, PROMPT, PAGES, resume=False, budget_ms=1e6)
    assert isinstance(outcome, tuple)
    np.testing.assert_array_equal(outcome[0], right)
    model.close_slice(piece)


def test_bad_input_is_an_error(library: NativeLibrary) -> None:
    model = build(library)
    piece = model.open_slice()
    with pytest.raises(EngineError, match="names page"):
        go_on(model, piece, PROMPT, [*PAGES[:5], 9999], resume=False)
    model.close_slice(piece)
