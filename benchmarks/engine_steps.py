"""Single steps of the native engine in this process, timed: what a part of a step costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from twinpath.engine.cpu import CpuEngine, CpuOptions
from twinpath.model.files import files_at
from twinpath.model.weights import load_weights, read_spec
from twinpath.types import SamplingParams, SlotInit, StepPlan

#: Steps of one kind; the median of their times counts.
NUM_STEPS = 5


def matrix_gflops(size: int = 1536) -> float:
    """What numpy's BLAS reaches on this machine with all its threads: the best of a few, as a peak to compare with."""
    a = np.ones((size, size), np.float32)
    best_s = min(_timed_s(lambda: a @ a) for _ in range(2 * NUM_STEPS))
    return 2 * size**3 / best_s / 1e9


def _timed_s(work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s


class StepTimer:
    """An engine of its own, whose KV is never written before it is read: only time matters."""

    def __init__(self, model: Path, window_tokens: int, page_size: int = 16) -> None:
        files = files_at(model)
        spec = self._spec = read_spec(files)
        num_pages = -(-window_tokens // page_size)
        options = CpuOptions(page_size=page_size, num_pages=num_pages, max_slots=1, max_step_tokens=256)
        self._engine = CpuEngine(spec, load_weights(files, spec), options)
        self._table = np.arange(num_pages, dtype=np.int32)[None]
        self._step_id = 0

    def attention_ms(self, num_rows: int, context: int) -> float:
        """What `num_rows` rows behind `context` tokens cost more than without them: attention to those tokens."""
        behind, alone = [], []
        for _ in range(NUM_STEPS):
            behind.append(self.step_ms(num_rows, context))
            alone.append(self.step_ms(num_rows, 0))
        return statistics.median(behind) - statistics.median(alone)

    def attention_gflops(self, num_rows: int, context: int) -> float:
        """Rate of those additional products, in 1e9 operations a second (an FMA is two)."""
        spec = self._spec
        num_operations = 4 * num_rows * context * spec.num_heads * spec.head_dim * spec.num_layers
        return num_operations / self.attention_ms(num_rows, context) / 1e6

    def step_ms(self, num_rows: int, start: int) -> float:
        """Prefill rows, nothing sampled."""
        self._step_id += 1
        tokens = np.full(num_rows, 100, np.int32)
        plan = StepPlan(
            step_id=self._step_id,
            slots=np.zeros(1, np.int32),
            starts=np.array([start], np.int32),
            lengths=np.array([num_rows], np.int32),
            sample=np.zeros(1, np.bool_),
            tokens=tokens,
            block_tables=self._table,
            layer_begin=0,
            layer_end=self._engine.info.num_layers,
            inits=(SlotInit(0, SamplingParams(max_tokens=1), tokens, num_rows),),
        )
        begin_s = time.perf_counter()
        self._engine.submit(plan)
        result = self._engine.poll()
        elapsed_ms = (time.perf_counter() - begin_s) * 1e3
        if result is None or result.failures:
            raise SystemExit(f"the step failed: {result}")
        return elapsed_ms
