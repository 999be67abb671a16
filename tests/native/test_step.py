"""The whole step: right against a float64 decoder, the same bits however rows are batched, cut, paged or threaded."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.random_models import SPECS, VOCAB_SIZE, random_weights
from native.decoder import hidden_states, logits
from twinpath.errors import EngineError, ModelLoadError
from twinpath.model.spec import ModelSpec
from twinpath.native.library import NativeLibrary, load_library
from twinpath.native.model import NativeModel, NativeOptions
from twinpath.types import Float32s

ISAS = load_library().usable_isas()
PAGE, NUM_PAGES = 16, 64
RNG = np.random.default_rng(11)
PROMPT = RNG.integers(0, VOCAB_SIZE, 90).tolist()
OTHER = RNG.integers(0, VOCAB_SIZE, 41).tolist()


def build(
    library: NativeLibrary, name: str = "llama", isa: str = "auto", threads: int = 1, **options: int
) -> NativeModel:
    spec = SPECS[name]
    settings = {"page_size": PAGE, "num_pages": NUM_PAGES, "max_rows": 200, "max_position": 160, **options}
    return NativeModel(library, spec, random_weights(spec), NativeOptions(threads=threads, isa=isa, **settings))


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def run(
    model: NativeModel, segments: list[tuple[int, list[int], list[int]]], sample: bool = True, **more: object
) -> tuple[Float32s, Float32s]:
    """(start, tokens, pages) per segment -> logits of each segment's last row, hidden rows."""
    num_pages = max(len(pages) for _, _, pages in segments)
    tables = np.array([pages + [-1] * (num_pages - len(pages)) for _, _, pages in segments], np.int32)
    result = model.step(
        ints(*(start for start, _, _ in segments)),
        ints(*(len(tokens) for _, tokens, _ in segments)),
        np.full(len(segments), sample, np.uint8),
        np.concatenate([ints(*tokens) for _, tokens, _ in segments]),
        tables,
        **more,  # type: ignore[arg-type]
    )
    assert result is not None
    return result


def all_logits(model: NativeModel, tokens: list[int], pages: list[int]) -> Float32s:
    _, hidden = run(model, [(0, tokens, pages)], keep_hidden=np.ones(1, np.uint8))
    return np.concatenate([model.logits(hidden[i : i + 7]) for i in range(0, len(hidden), 7)])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", list(SPECS))
def test_logits_of_every_position_are_right(library: NativeLibrary, name: str, isa: str) -> None:
    model = build(library, name, isa)
    right = logits(SPECS[name], random_weights(SPECS[name]), PROMPT)
    got = all_logits(model, PROMPT, list(range(6)))
    # Keys and values are fp16 (2**-11); the weights here are F32, so activations are not quantised.
    assert np.abs(got - right).max() <= 5e-3 * np.abs(right).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["smollm2", "gemma3", "qwen2"])
def test_no_way_of_running_it_changes_a_bit(library: NativeLibrary, name: str, isa: str) -> None:
    expected = all_logits(build(library, name, isa), PROMPT, list(range(6)))
    model = build(library, name, isa, threads=3)
    scrambled = [40, 3, 61, 17, 8, 22]
    np.testing.assert_array_equal(all_logits(model, PROMPT, scrambled), expected)
    # In chunks, the last one beside a stranger, then token by token beside another.
    pages, strangers = [5, 50, 2, 33, 19, 7], [60, 1, 30]
    for begin, end in ((0, 1), (1, 18), (18, 55)):
        run(model, [(begin, PROMPT[begin:end], pages)], sample=False)
    beside, _ = run(model, [(0, OTHER, strangers), (55, PROMPT[55:80], pages)])
    np.testing.assert_array_equal(beside[1], expected[79])
    for position in range(80, 90):
        one, _ = run(model, [(position, [PROMPT[position]], pages), (position - 49, [OTHER[position - 49]], strangers)])
        np.testing.assert_array_equal(one[0], expected[position])


def test_long_rows_are_the_same_alone_and_in_a_prompt(library: NativeLibrary) -> None:
    """Contexts beyond one softmax span (256 positions), where keys are split among threads."""
    spec = replace(SPECS["smollm2"], max_position=600)
    tokens = np.random.default_rng(5).integers(0, VOCAB_SIZE, 590).tolist()
    pages = np.random.default_rng(6).permutation(40).tolist()
    options = {"page_size": 16, "num_pages": 40, "max_rows": 600, "max_position": 600}
    one = NativeModel(library, spec, random_weights(spec), NativeOptions(threads=1, **options))
    expected = all_logits(one, tokens, pages)
    for threads in (2, 5):
        model = NativeModel(library, spec, random_weights(spec), NativeOptions(threads=threads, **options))
        run(model, [(0, tokens[:-2], pages)], sample=False)
        for position in range(len(tokens) - 2, len(tokens)):
            got, _ = run(model, [(position, [tokens[position]], pages)])
            np.testing.assert_array_equal(got[0], expected[position])
    right = logits(spec, random_weights(spec), tokens)
    assert np.abs(expected - right).max() <= 1e-2 * np.abs(right).max()


def test_layer_slices_hand_over_the_residual_stream(library: NativeLibrary) -> None:
    spec: ModelSpec = SPECS["qwen3"]
    whole = all_logits(build(library, "qwen3"), PROMPT, list(range(6)))
    model = build(library, "qwen3", threads=2)
    residual = np.full((len(PROMPT), spec.hidden_size), np.nan, np.float32)
    states = hidden_states(spec, random_weights(spec), PROMPT)
    for begin, end in ((0, 0), (0, 1), (1, 2)):
        run(model, [(0, PROMPT, list(range(6)))], sample=False, layers=(begin, end), residual=residual)
        assert np.abs(residual - states[end]).max() <= 5e-3 * np.abs(states[end]).max()
    last, _ = run(model, [(0, PROMPT, list(range(6)))], layers=(2, 3), residual=residual)
    np.testing.assert_array_equal(last[0], whole[-1])


def test_threads_change_between_steps(library: NativeLibrary) -> None:
    model = build(library, threads=2)
    expected, _ = run(model, [(0, PROMPT, list(range(6)))])
    for threads in (5, 1, 2):
        model.set_threads(threads)
        got, _ = run(model, [(0, PROMPT, list(range(6)))])
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(EngineError, match="threads"):
        model.set_threads(0)


def test_a_cancel_stops_a_long_prefill_soon(library: NativeLibrary) -> None:
    spec = replace(SPECS["llama"], max_position=8192)
    options = NativeOptions(threads=2, page_size=16, num_pages=512, max_rows=8192, max_position=8192, isa="portable")
    model = NativeModel(library, spec, random_weights(spec), options)
    tokens = (PROMPT * 100)[:8192]
    before = model.progress()

    def cancel_once_under_way() -> None:
        deadline = time.monotonic() + 30
        while model.progress() == before and time.monotonic() < deadline:
            time.sleep(0.0005)
        model.cancel()

    canceller = threading.Thread(target=cancel_once_under_way)
    canceller.start()
    result = model.step(ints(0), ints(8192), np.ones(1, np.uint8), ints(*tokens), np.arange(512, dtype=np.int32)[None])
    canceller.join()
    assert result is None
    phases = model.progress() - before
    assert phases < 15, "a cancelled step must not go on through its layers"
    model.cancel(False)
    got, _ = run(model, [(0, PROMPT, list(range(6)))])
    np.testing.assert_array_equal(got, run(build(library, isa="portable"), [(0, PROMPT, list(range(6)))])[0])


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([(0, [VOCAB_SIZE], [0])], "token id 160"),
        ([(0, [-1], [0])], "token id -1"),
        ([(0, [1], [NUM_PAGES])], "page 64"),
        ([(0, [1] * 17, [0, -1])], "page -1"),
        ([(0, [1] * 17, [0])], "more pages"),
        ([(-1, [1], [0])], "bad start or length"),
        ([(160, [1], list(range(11)))], "beyond position 160"),
        ([(0, [1] * 110, list(range(7))), (0, [1] * 110, list(range(7, 14)))], "220 rows, limit 200"),
        ([(2**31 - 1, [1], [0])], "beyond position"),
    ],
)
def test_bad_input_is_an_error_and_no_crash(
    library: NativeLibrary, segments: list[tuple[int, list[int], list[int]]], message: str
) -> None:
    model = build(library)
    with pytest.raises(EngineError, match=message):
        run(model, segments)
    assert np.isfinite(run(model, [(0, PROMPT, list(range(6)))])[0]).all()


def test_shapes_that_do_not_agree_are_an_error(library: NativeLibrary) -> None:
    model = build(library)
    one, table, flag = ints(1), np.zeros((1, 1), np.int32), np.ones(1, np.uint8)
    for arguments in (
        (ints(0), ints(1, 1), flag, one, table),
        (ints(0), one, flag, ints(1, 2), table),
        (ints(0), one, flag, one, np.zeros((2, 1), np.int32)),
        (ints(0), ints(2**30), flag, one, table),
    ):
        with pytest.raises(EngineError):
            model.step(*arguments)
    with pytest.raises(EngineError, match="residual"):
        model.step(ints(0), one, flag, one, table, layers=(0, 1))
    with pytest.raises(EngineError, match="residual"):
        model.step(ints(0), one, flag, one, table, layers=(0, 1), residual=np.zeros((1, 8), np.float32))


def test_tensors_that_do_not_fit_are_named(library: NativeLibrary) -> None:
    spec = SPECS["llama"]
    options = NativeOptions(threads=1, num_pages=4)
    weights = dict(random_weights(spec))
    missing = {name: tensor for name, tensor in weights.items() if name != "layers.1.up"}
    with pytest.raises(ModelLoadError, match=r"layers\.1\.up is missing"):
        NativeModel(library, spec, missing, options)
    wrong = {**weights, "layers.2.down": replace(weights["layers.2.down"], rows=95)}
    with pytest.raises(ModelLoadError, match=r"layers\.2\.down is \[95, 160\], expected \[96, 160\]"):
        NativeModel(library, spec, wrong, options)
    short = {**weights, "final_norm": replace(weights["final_norm"], data=weights["final_norm"].data[:, :8])}
    with pytest.raises(ModelLoadError, match="final_norm has 8 bytes"):
        NativeModel(library, spec, short, options)
    with pytest.raises(ModelLoadError, match="page_size"):
        NativeModel(library, spec, weights, NativeOptions(threads=1, page_size=24))
