"""The captured paths of the CUDA engine, on the CPU: graphs that run again what they captured, a plain decode step."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.engines import NUM_PAGES, PAGE_SIZE, PROMPTS, SAMPLED, alone, driver_of, poisoned_model
from engine.random_models import VOCAB_SIZE
from engine.step_driver import Driver, Sequence
from twinpath.engine.cuda import graphs
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.forward import Forward
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.weights import pack_weights
from twinpath.kernels.prefill_rows.spec import Rows
from twinpath.types import TokenMasks


@dataclass
class Replay:
    """Stands for a captured graph."""

    replay: Callable[[], None]


class PlainStep:
    """A decode step with the real one's buffers, over the rows' own block tables."""

    def __init__(self, forward: Forward, num_layers: int, max_pages: int) -> None:
        self._forward, self._num_layers = forward, num_layers
        self.buffers = SimpleNamespace(
            tokens=torch.zeros(8, dtype=torch.int32),
            positions=torch.full((8,), -1, dtype=torch.int32),
            block_tables=torch.full((8, max_pages), NUM_PAGES, dtype=torch.int32),
            logits=torch.zeros(8, VOCAB_SIZE),
        )
        self.batches: list[int] = []

    def launch(self, batch: int) -> None:
        self.batches.append(batch)
        b = self.buffers
        positions, every = b.positions[:batch], torch.arange(batch, dtype=torch.int32)
        slots = torch.where(positions >= 0, every, -1)
        tiles = torch.stack((every, (positions >= 0).int(), positions, every), dim=1)
        rows = Rows(b.tokens[:batch], positions, slots, tiles, b.block_tables, torch.zeros(8, 512, dtype=torch.int32))
        residual = torch.zeros(batch, self._forward.weights.spec.hidden_size)
        self._forward.embed(rows, residual)
        for layer in range(self._num_layers):
            self._forward.layer(layer, rows, residual, first=layer == 0)
        self._forward.finish_layers(self._num_layers - 1, residual)
        b.logits[:batch] = self._forward.logits(every, residual)


def captured_engine(monkeypatch: pytest.MonkeyPatch, capture: Callable[[Callable[[], None]], Replay]) -> CudaEngine:
    monkeypatch.setattr(graphs, "_capture", lambda run, _: capture(run))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    spec, weights = poisoned_model()
    packed = pack_weights(spec, weights, torch.device("cpu"), torch.float32, spec.max_position)
    options = CudaOptions(
        device="cpu", kernels="plain", graphs=False, page_size=PAGE_SIZE, num_pages=NUM_PAGES,
        max_slots=6, max_step_tokens=128, depth=2,
    )  # fmt: skip
    engine = CudaEngine(packed, options)
    launcher = engine.launcher
    step = PlainStep(launcher._forward, spec.num_layers, launcher._tables.tables.shape[1])
    launcher.capture(step)  # type: ignore[arg-type]
    step.batches.clear()
    engine.step = step  # type: ignore[attr-defined]
    return engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> CudaEngine:
    def capture(run: Callable[[], None]) -> Replay:
        run()
        return Replay(run)

    return captured_engine(monkeypatch, capture)


@pytest.fixture
def right() -> dict[int, list[int]]:
    """Without graphs."""
    spec, weights = poisoned_model()
    packed = pack_weights(spec, weights, torch.device("cpu"), torch.float32, spec.max_position)
    options = CudaOptions(
        device="cpu", kernels="plain", graphs=False, page_size=PAGE_SIZE, num_pages=NUM_PAGES,
        max_slots=6, max_step_tokens=128,
    )  # fmt: skip
    driver = driver_of(CudaEngine(packed, options))
    return {slot: alone(driver, prompt, 8, **sampling(slot)) for slot, prompt in PROMPTS.items()}


def sampling(slot: int) -> dict[str, object]:
    return SAMPLED if slot == 1 else {}


def test_the_engine_keeps_what_its_graphs_stand_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph holds addresses, no objects. On a card the step's memory had gone to the next long prefill."""
    engine = captured_engine(monkeypatch, lambda run: Replay(lambda: None))
    step = weakref.ref(engine.__dict__.pop("step"))
    gc.collect()
    assert step() is not None


def test_captured_prefill_and_decode_say_the_same(engine: CudaEngine, right: dict[int, list[int]]) -> None:
    driver = driver_of(engine)
    sequences = {slot: driver.sequence(slot, prompt, **sampling(slot)) for slot, prompt in PROMPTS.items()}
    everyone: list[Sequence] = list(sequences.values())
    driver.run([driver.chunk(s) for s in everyone], inits=everyone)
    num_submitted = num_done = 0
    while num_done < 7:
        while num_submitted < 7 and num_submitted - num_done < 2:
            engine.submit(driver.plan([driver.pending(s) for s in everyone]))
            num_submitted += 1
        result = driver.result()
        assert not result.failures
        for sequence, token in zip(everyone, result.tokens.tolist(), strict=True):
            sequence.tokens.append(token)
        num_done += 1
    assert {slot: s.outputs for slot, s in sequences.items()} == right
    assert engine.step.batches == [4] * 7  # type: ignore[attr-defined]


def test_a_masked_decode_step_waits_for_its_mask(engine: CudaEngine) -> None:
    driver = Driver(engine)
    first, second = driver.sequence(0, PROMPTS[0]), driver.sequence(3, PROMPTS[1])
    driver.run([driver.chunk(s) for s in (first, second)], inits=[first, second])
    plan = driver.plan([driver.chunk(s) for s in (first, second)])
    words = np.zeros((1, -(-VOCAB_SIZE // 32)), np.int32)
    masks = TokenMasks(np.array([1], np.int32), words)
    object.__setattr__(plan, "masks", masks)
    engine.submit(plan)
    assert engine.poll(0) is None
    words[0, 2] = 1 << 7  # only id 71
    masks.ready.set()
    result = driver.result()
    assert result.counts.tolist() == [1, 1]
    assert int(result.tokens[1]) == 71


def test_a_decode_step_of_someone_unknown_fails_alone(engine: CudaEngine, right: dict[int, list[int]]) -> None:
    driver = driver_of(engine)
    known, unknown = driver.sequence(0, PROMPTS[0]), driver.sequence(4, PROMPTS[2][:1])
    driver.run([driver.chunk(known)], inits=[known])
    result = driver.run([driver.chunk(unknown), driver.chunk(known)])
    assert list(result.failures) == [0]
    assert known.outputs == right[0][:2]


def test_steps_run_with_few_counts_of_rows_that_hold_them() -> None:
    """Each count is tried before ready, at some 50 ms: hundreds of them were 14 s of a start."""
    launched = [graphs.launched_rows(num_rows) for num_rows in range(1, 8193)]
    assert all(rows >= num_rows for num_rows, rows in enumerate(launched, 1))
    assert len(set(launched)) <= 64
    assert max(rows / num_rows for num_rows, rows in enumerate(launched, 1) if num_rows >= 512) < 1.25
