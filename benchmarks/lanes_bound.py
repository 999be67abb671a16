"""What prefill can get beside streams at best: `python -m benchmarks.lanes_bound MODEL.gguf --out FILE`.

One process, no HTTP, no scheduler: two decode rows and a long prompt share the native model in every way that there is.
Periods have the wanted length on average, as if no step ever took longer: nothing that a server does is better than
this. Between steps passes what passes there in a server (`--between-ms`), in the idle gaps as well.

slices: a decode step on all threads, and prefill on all threads until the period is over.
beside: the decode step on half of the threads, prefill on the others meanwhile, and on all of them for the rest.
riding: prompt rows in the same forward as the decode rows; so many that the period is full.
pause: a decode step after so many milliseconds in which one core spins and nothing else happens.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lanes import NUM_STREAMS, SHORT_EVERY_S, SHORT_PROMPT, STREAM_PROMPT, STREAM_TOKENS
from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import describe, result_document
from twinpath.bench.statistics import quantile
from twinpath.engine.cpu import CpuEngine, CpuOptions
from twinpath.model.files import files_at
from twinpath.model.weights import load_weights, read_spec
from twinpath.native.model import NativeSlice, PausedAt

CHUNK_TOKENS, PAGE_SIZE, WINDOW_TOKENS = 256, 16, 8192
#: Where the streams are: in the middle of their answers.
STREAM_CONTEXT = STREAM_PROMPT + STREAM_TOKENS // 2
NUM_IDLE, NUM_PAUSES = 150, 40
PAUSES_MS = (1.0, 3.0, 5.0, 8.0)
RIDING = (3, 5, 8, 12, 18)
#: How fast the time for prefill follows the difference between a period and what it should be.
GAIN, LEAST_MS = 0.2, 0.1
#: In idle gaps: periods that are tried, and how long they may be for which share of prefill alone.
PERIODS = (1.6, 2.0, 2.5, 3.5)
BUDGETS = {2.0: 0.45, 3.5: 0.70}


_ENOUGH_MS = 1e6


def spin_until(end_s: float) -> float:
    while time.perf_counter() < end_s:
        pass
    return end_s


@dataclass
class Run:
    """A prompt beside streams: times at which decode rows were through, and how long the prompt took."""

    decoded_s: list[float]
    elapsed_s: float

    @property
    def gaps_ms(self) -> list[float]:
        return [(after - before) * 1e3 for before, after in pairwise(self.decoded_s)]


class Machine:
    """The model, its decode rows, and a prompt that begins anew with each run."""

    def __init__(self, path: Path, long_tokens: int, between_ms: float) -> None:
        files = files_at(path)
        spec = read_spec(files)
        num_pages = WINDOW_TOKENS // PAGE_SIZE
        options = CpuOptions(page_size=PAGE_SIZE, num_pages=num_pages, max_step_tokens=CHUNK_TOKENS + NUM_STREAMS)
        self._engine = CpuEngine(spec, load_weights(files, spec), options)
        self.model = self._engine.model
        self.threads = int(self._engine.facts["threads"])
        self._piece = self.model.open_slice()
        self.long_tokens, self._between_s = long_tokens, between_ms / 1e3
        per_stream = -(-STREAM_CONTEXT // PAGE_SIZE)
        self._long_table = np.arange(NUM_STREAMS * per_stream, num_pages, dtype=np.int32)
        self._tables = np.full((NUM_STREAMS + 1, len(self._long_table)), -1, np.int32)
        self._tables[-1] = self._long_table
        for i in range(NUM_STREAMS):
            self._tables[i, :per_stream] = np.arange(i * per_stream, (i + 1) * per_stream)

    def decode(self, beside: NativeSlice | None = None, riding: tuple[int, int] | None = None) -> float:
        """One step of the streams; `riding`: with these rows (start, length) of the prompt. When it was through."""
        lengths = [1] * NUM_STREAMS + ([riding[1]] if riding else [])
        starts = [STREAM_CONTEXT - 1] * NUM_STREAMS + ([riding[0]] if riding else [])
        num = len(lengths)
        sample = np.array([1] * NUM_STREAMS + [0] * (num - NUM_STREAMS), np.uint8)
        tables = self._tables[:num] if num > NUM_STREAMS else np.ascontiguousarray(self._tables[:num, :64])
        self.model.step(
            np.array(starts, np.int32), np.array(lengths, np.int32), sample, np.full(sum(lengths), 100, np.int32),
            tables, beside=beside,
        )  # fmt: skip
        return spin_until(time.perf_counter() + self._between_s)

    def prefill(self, start: int, budget_ms: float, *, resume: bool, end: int = 0) -> bool:
        """Goes on with the chunk at `start` of a prompt that ends at `end` (0: the long one); whether it is through."""
        num = min(CHUNK_TOKENS, (end or self.long_tokens) - start)
        outcome = self.model.step_slice(
            self._piece, budget_ms, np.array([start], np.int32), np.array([num], np.int32), np.zeros(1, np.uint8),
            np.full(num, 100, np.int32), self._long_table[None], resume=resume,
        )  # fmt: skip
        return not isinstance(outcome, PausedAt)

    def alone_s(self, num_tokens: int) -> float:
        """A prompt of so many tokens, and nobody else."""
        begin_s = time.perf_counter()
        for start in range(0, num_tokens, CHUNK_TOKENS):
            self.prefill(start, _ENOUGH_MS, resume=False, end=num_tokens)
        return time.perf_counter() - begin_s

    def after_pause_ms(self, pause_ms: float) -> float:
        """A decode step alone after that."""
        begin_s = spin_until(time.perf_counter() + pause_ms / 1e3)
        return (self.decode() - begin_s - self._between_s) * 1e3

    def idle(self) -> Run:
        begin_s = time.perf_counter()
        return Run([self.decode() for _ in range(NUM_IDLE)], time.perf_counter() - begin_s)

    def shared(self, period_ms: float, *, is_beside: bool) -> Run:
        """Decode steps every `period_ms` on average, prefill in the time that they leave."""
        begin_s = time.perf_counter()
        decoded_s = [begin_s]
        start, is_paused, budget_ms = 0, False, period_ms / 2
        while start < self.long_tokens:
            decoded_s.append(self.decode(self._piece if is_beside and is_paused else None))
            budget_ms = max(budget_ms + GAIN * (period_ms - (decoded_s[-1] - decoded_s[-2]) * 1e3), LEAST_MS)
            if self.prefill(start, budget_ms, resume=is_paused):
                start, is_paused = start + CHUNK_TOKENS, False
            else:
                is_paused = True
        return Run(decoded_s, time.perf_counter() - begin_s)

    def riding(self, num_rows: int) -> Run:
        begin_s = time.perf_counter()
        decoded_s = [begin_s]
        for start in range(0, self.long_tokens, num_rows):
            decoded_s.append(self.decode(riding=(start, min(num_rows, self.long_tokens - start))))
        return Run(decoded_s, time.perf_counter() - begin_s)

    def close(self) -> None:
        self.model.close_slice(self._piece)
        self._engine.close()


def measure(machine: Machine, num_rounds: int) -> dict[str, Any]:
    idle_ms = statistics.median(machine.idle().gaps_ms)
    machine.alone_s(machine.long_tokens)
    arms: dict[str, Callable[[], Run]] = {"idle": machine.idle}
    for period in PERIODS:
        for way in ("slices", "beside"):
            arms[f"{way} {period}"] = partial(machine.shared, period * idle_ms, is_beside=way == "beside")
    for num_rows in RIDING:
        arms[f"riding {num_rows}"] = partial(machine.riding, num_rows)
    runs: dict[str, list[Run]] = {name: [] for name in arms}
    alone_s: dict[int, list[float]] = {num: [] for num in (machine.long_tokens, SHORT_PROMPT, STREAM_PROMPT)}
    after_pause_ms: dict[float, list[float]] = {pause_ms: [] for pause_ms in PAUSES_MS}
    for _ in range(num_rounds):
        for num_tokens, times in alone_s.items():
            times.append(machine.alone_s(num_tokens))
        for name, run in arms.items():
            runs[name].append(run())
        for pause_ms, steps in after_pause_ms.items():
            steps += [machine.after_pause_ms(pause_ms) for _ in range(NUM_PAUSES)]
    alone = {num_tokens: statistics.median(times) for num_tokens, times in alone_s.items()}
    found = conclude(runs, alone, machine.long_tokens)
    steps_ms = {f"{pause_ms} ms": describe(steps) for pause_ms, steps in after_pause_ms.items()}
    return {**found, "step_after_pause_ms": steps_ms}


def conclude(runs: dict[str, list[Run]], alone_s: dict[int, float], long_tokens: int) -> dict[str, Any]:
    """`alone_s`: prompts of so many tokens without anybody else."""
    idle = [gap for run in runs["idle"] for gap in run.gaps_ms]
    idle_ms = statistics.median(idle)
    ways: dict[str, dict[str, Any]] = {}
    for name, some in runs.items():
        gaps = [gap for run in some for gap in run.gaps_ms]
        share = alone_s[long_tokens] / statistics.median(run.elapsed_s for run in some)
        mean, p99 = statistics.fmean(gaps) / idle_ms, quantile(sorted(gaps), 0.99) / idle_ms
        ways[name] = {"gaps_ms": describe(gaps), "mean_of_idle": mean, "p99_of_idle": p99, "share": share}
    del ways["idle"]
    points = [(1.0, 0.0), *((1.0 / one["mean_of_idle"], one["share"]) for one in ways.values())]
    bounds = {}
    for budget, wanted in BUDGETS.items():
        share, others = best_mix(points, 1.0 / budget), others_share(budget * idle_ms, alone_s)
        in_time = [one["share"] for one in ways.values() if one["p99_of_idle"] <= budget]
        bounds[str(budget)] = {
            "wanted": wanted, "share": share, "others": others, "bound": share - others,
            "share_where_p99_is_within": max(in_time, default=0.0),
        }  # fmt: skip
    rate = long_tokens / alone_s[long_tokens]
    return {"idle_gaps_ms": describe(idle), "solo_tokens_per_s": rate, "ways": ways, "budgets": bounds}


def best_mix(points: list[tuple[float, float]], speed: float) -> float:
    """The largest share at that speed of the streams, of `points` (speed, share) and of two of them by turns."""
    shares = [share for x, share in points if x == speed]
    for (left, low), (right, high) in combinations(sorted(points), 2):
        if left < speed < right:
            shares.append(low + (high - low) * (speed - left) / (right - left))
    return max(shares, default=0.0)


def others_share(period_ms: float, alone_s: dict[int, float]) -> float:
    """Of the time that prefill alone would have: what the prompts of the fresh requests take, and of the streams that
    come again when they have ended."""
    streams_per_s = NUM_STREAMS / (STREAM_TOKENS * period_ms / 1e3)
    return alone_s[SHORT_PROMPT] / SHORT_EVERY_S + alone_s[STREAM_PROMPT] * streams_per_s


def table(result: dict[str, Any]) -> list[Row]:
    rows = [["two streams and a prompt", "gap p50 ms", "p99", "mean / idle p50", "share of prefill alone"]]
    idle = result["idle_gaps_ms"]
    rows.append(["idle", f"{idle.p50:.2f}", f"{idle.p99 or idle.max:.2f}", f"{idle.mean / idle.p50:.2f}", "-"])
    for name, one in result["ways"].items():
        gaps = one["gaps_ms"]
        tail = gaps.p99 or gaps.max
        rows.append([name, f"{gaps.p50:.2f}", f"{tail:.2f}", f"{one['mean_of_idle']:.2f}", f"{one['share']:.1%}"])
    for pause, steps in result["step_after_pause_ms"].items():
        rows.append(
            [f"decode step after a pause of {pause}", f"{steps.p50:.2f}", f"{steps.p99 or steps.max:.2f}", "-", "-"]
        )
    for budget, one in result["budgets"].items():
        cell = f"{one['bound']:.1%} ({one['share']:.1%}, others' prompts {one['others']:.1%})"
        rows.append([f"at most with gaps of {budget} idle gaps", "", "", "", f"{cell}; wanted {one['wanted']:.0%}"])
        rows.append(["of these ways, p99 so long", "", "", "", f"{one['share_where_p99_is_within']:.1%}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.lanes_bound", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--budget", type=float, nargs="+", default=[2.0, 3.5], help="periods, as multiples of idle gaps"
    )
    parser.add_argument("--long-tokens", type=int, default=1024)
    parser.add_argument("--between-ms", type=float, default=0.3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    machine = Machine(args.model.resolve(), args.long_tokens, args.between_ms)
    result = measure(machine, args.rounds)
    machine.close()
    print(render(table(result)))
    if args.out:
        args.out.write_bytes(result_document("lanes_bound", sys.orig_argv, {"twinpath": __version__}, result))


if __name__ == "__main__":
    main()
