"""What mixed steps and slices of long chunks cost on one card, over submit and poll with two plans outstanding.

    python -m benchmarks.gpu_costs --json out.json

The lanes' cost model is fitted to such steps; this table says what there is to fit. Random weights of real shapes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_engine import MODELS, Driver, Stream, open_engine, prompt
from twinpath.types import PENDING_TOKEN, StepPlan

_NUM_STREAMS = 8
_STREAM_TOKENS = 1024


class Mixed:
    """Streams that go on, and one long prompt whose rows are computed beside them."""

    def __init__(self, driver: Driver, longest: int) -> None:
        self.driver = driver
        self.streams = [Stream(i, i * 200, prompt(_STREAM_TOKENS, i)) for i in range(_NUM_STREAMS)]
        self.long = Stream(_NUM_STREAMS, _NUM_STREAMS * 200, prompt(longest, 99))
        for stream in (*self.streams, self.long):
            driver.prefill_ms(stream, 8192)
        self.position = _STREAM_TOKENS

    def plan(self, context: int, num_rows: int, num_streams: int) -> StepPlan:
        parts: list[tuple[Stream, int, list[int], bool]] = [
            (stream, self.position, [PENDING_TOKEN], True) for stream in self.streams[:num_streams]
        ]
        if num_rows:
            parts.append((self.long, context, self.long.tokens[context : context + num_rows], False))
        self.position += num_streams > 0
        return self.driver.plan(parts)

    def step_ms(self, context: int, num_rows: int, num_streams: int, repeats: int = 12) -> float:
        """Median time between results."""
        return self.gap_ms([self.plan(context, num_rows, num_streams) for _ in range(repeats)])

    def slice_ms(self, context: int, num_rows: int, num_layers: int) -> float:
        info = self.driver.engine.info
        residual = np.zeros((num_rows, info.hidden_size), np.float32)
        plans = []
        for begin in range(0, info.num_layers, num_layers):
            end = min(begin + num_layers, info.num_layers)
            plans.append(replace(self.plan(context, num_rows, 0), layer_begin=begin, layer_end=end, residual=residual))
        return self.gap_ms(plans)

    def gap_ms(self, plans: list[StepPlan]) -> float:
        engine, ends, submitted = self.driver.engine, [], 0
        for done in range(len(plans)):
            while submitted < len(plans) and submitted - done < engine.info.depth:
                engine.submit(plans[submitted])
                submitted += 1
            result = engine.poll()
            assert result is not None and not result.failures, result
            ends.append(time.perf_counter())
        return round(1e3 * statistics.median(b - a for a, b in list(pairwise(ends))[2:]), 3)


def bench_costs(driver: Driver, longest: int) -> list[dict[str, Any]]:
    mixed, found = Mixed(driver, longest), []
    contexts = [context for context in (0, 8192, 16_384, 28_672) if context < longest]
    for num_streams, rows in ((8, (0, 24, 56, 88, 120, 184, 248, 376, 504)), (0, (32, 128, 256))):
        for num_rows in rows:
            for context in contexts if num_rows else (0,):
                ms = mixed.step_ms(context, num_rows, num_streams)
                found.append({"streams": num_streams, "rows": num_rows, "context": context, "ms": ms})
    for num_rows in (512, 1024, 2048, 4096):
        for context in contexts:
            if context + num_rows <= longest:
                row = {f"layers_{n}_ms": mixed.slice_ms(context, num_rows, n) for n in (1, 2)}
                found.append({"rows": num_rows, "context": context, **row})
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="llama-8b", choices=MODELS)
    parser.add_argument("--longest", type=int, default=32_768)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    engine, _ = open_engine(MODELS[arguments.model])
    rows = bench_costs(Driver(engine), arguments.longest)
    for row in rows:
        print(json.dumps(row), flush=True)
    engine.close()
    if arguments.json:
        arguments.json.write_text(json.dumps({"model": arguments.model, "costs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
