"""What pages cost, without HTTP: `python -m benchmarks.pages [MODEL.gguf]`.

bookkeeping: time in which the scheduler takes in a turn and plans its first step, behind histories of various length:
    with a session, with a pinned template, with the prefix index alone, and the opening of a session; while the pool is
    so full that pages are taken back all the time.
page sizes: memory in unused ends of last pages, tokens that a second turn computes again, requests that had to give way
    in one fixed load, and (with a model) steps of the native engine up to its window, at page borders and between.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_steps import StepTimer
from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import describe, result_document
from twinpath.ipc.messages import PinnedPrompt, PinTemplate
from twinpath.scheduler import Scheduler, SchedulerLimits
from twinpath.scheduler.holdings import Holdings
from twinpath.types import EngineInfo, Request, SamplingParams, StepPlan, StepResult

HISTORIES = (2_000, 6_000, 32_000, 100_000)
NUM_NEW = 64
NUM_ROUNDS = 60
INFO = EngineInfo(
    num_layers=1,
    hidden_size=1,
    vocab_size=50_000,
    max_model_len=140_000,
    page_size=16,
    num_pages=20_000,
    max_slots=64,
    max_step_tokens=8192,
    depth=1,
)
PAGE_SIZES = (1, 16, 64, 256, 1024, 4096, 16_384)
#: Context lengths of the waste table, to 128K tokens.
CONTEXTS = (500, 2_000, 8_000, 48_000, 131_072)
#: The fixed load: so many requests with prompts and outputs of these lengths, in a pool of so many tokens.
LOAD_REQUESTS, LOAD_PROMPTS, LOAD_OUTPUTS, LOAD_TOKENS = 64, (48, 2000), (16, 256), 65_536


class Bench:
    """A scheduler whose engine samples token 7 at once."""

    def __init__(self, info: EngineInfo) -> None:
        self.scheduler = Scheduler(info, SchedulerLimits(info.max_slots, info.max_step_tokens), clock=time.monotonic)
        self.holdings = Holdings(self.scheduler)
        self._num_requests = 0
        self._rng = np.random.default_rng(0)

    def tokens(self, num_tokens: int) -> list[int]:
        """Fresh ones."""
        found: list[int] = self._rng.integers(1000, 50_000, num_tokens).tolist()
        return found

    def request(self, prompt_ids: list[int], max_tokens: int = 1, session: str = "") -> Request:
        self._num_requests += 1
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        return Request(request_id=f"r{self._num_requests}", prompt_ids=prompt_ids, sampling=sampling, session=session)

    def take_in(self, request: Request) -> tuple[float, StepPlan]:
        """Milliseconds until its first step is planned."""
        begin_s = time.perf_counter()
        self.scheduler.add(request)
        plan = self.scheduler.plan()
        elapsed_ms = (time.perf_counter() - begin_s) * 1e3
        assert plan is not None
        return elapsed_ms, plan

    def run(self, plan: StepPlan | None = None) -> int:
        """To the end; the largest number of requests that ran at once."""
        most = 0
        while (plan := plan or self.scheduler.plan()) is not None:
            most = max(most, self.scheduler.num_running)
            counts = plan.sample.astype(np.int32)
            result = StepResult(plan.step_id, counts, np.full(int(counts.sum()), 7, np.int32))
            self.holdings.sift(self.scheduler.commit(result))
            plan = None
        return most

    def turn(self, prompt_ids: list[int], session: str = "") -> float:
        elapsed_ms, plan = self.take_in(self.request(prompt_ids, session=session))
        self.run(plan)
        return elapsed_ms


def bookkeeping() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for num_history in HISTORIES:
        bench = Bench(INFO)
        template = bench.tokens(num_history)
        bench.holdings.handle(PinTemplate(1, PinnedPrompt("t", template)))
        bench.run()
        histories = {kind: bench.tokens(num_history) for kind in ("session", "prefix index")}
        # The history of the session is found by its tokens, the other by hashing them.
        bench.turn(histories["session"], session="s")
        times: dict[str, list[float]] = {"session": [], "prefix index": [], "template": [], "no history": []}
        for _ in range(NUM_ROUNDS):
            fill(bench)
            bench.turn(histories["prefix index"])
            new = bench.tokens(NUM_NEW)
            times["session"].append(bench.turn(histories["session"] + new, session="s"))
            times["prefix index"].append(bench.turn(histories["prefix index"] + new))
            times["template"].append(bench.turn(template + new))
            times["no history"].append(bench.turn(new))
        found[str(num_history)] = {kind: spread(values) for kind, values in times.items()}
    return {"take_in_ms": found, "opening_ms": opening()}


def opening() -> dict[str, Any]:
    """First turns with and without a session, in pairs, in a full pool."""
    bench = Bench(INFO)
    fill(bench)
    differences, with_session = [], []
    for index in range(10 * NUM_ROUNDS):
        without = bench.turn(bench.tokens(NUM_NEW))
        with_session.append(bench.turn(bench.tokens(NUM_NEW), session=f"s{index}"))
        differences.append(with_session[-1] - without)
    return {"with": spread(with_session), "difference": spread(differences)}


def fill(bench: Bench) -> None:
    """Leave no page free: whatever comes has to take some back."""
    pool = bench.scheduler.pool
    while pool.num_free:
        most = min(pool.num_free * INFO.page_size, 100_000)
        bench.turn(bench.tokens(most))


def page_sizes(model: Path | None) -> dict[str, Any]:
    found = {}
    for page_size in PAGE_SIZES:
        rng = random.Random(1)
        waste = {}
        for context in CONTEXTS:
            lengths = [rng.randint(context * 9 // 10, context) for _ in range(1000)]
            pages = [-(-length // page_size) for length in lengths]
            waste[str(context)] = 1 - sum(lengths) / (sum(pages) * page_size)
        again = statistics.mean(length % page_size for length in (rng.randint(1, 131_072) for _ in range(10_000)))
        found[str(page_size)] = {"waste": waste, "tokens_again": again, "load": load(page_size)}
        if model is not None and 16 <= page_size <= 4096:
            found[str(page_size)]["steps_ms"] = steps(model, page_size)
    return found


def load(page_size: int) -> dict[str, Any]:
    """One fixed load, all at once, in one fixed amount of memory."""
    rng = random.Random(2)
    info = replace(INFO, page_size=page_size, num_pages=LOAD_TOKENS // page_size, max_step_tokens=2048)
    info = replace(info, max_model_len=min(info.max_model_len, LOAD_TOKENS))
    bench = Bench(info)
    refused = 0
    for _ in range(LOAD_REQUESTS):
        prompt = bench.tokens(rng.randint(*LOAD_PROMPTS))
        refused += bool(bench.scheduler.add(bench.request(prompt, rng.randint(*LOAD_OUTPUTS))))
    most = bench.run()
    return {
        "at_once": most,
        "preemptions": bench.scheduler.num_preemptions,
        "steps": bench.scheduler.num_steps,
        "refused": refused,
    }


def steps(model: Path, page_size: int) -> dict[str, float]:
    """Decode steps of one request to the end of the window: between borders and on a page's first token."""
    timer = StepTimer(model, 8192, page_size)
    for _ in range(50):  # Clocks and threads settle.
        timer.step_ms(16, 4000)
    positions = (1024, 2048, 4096, 6144, 8000)
    for position in positions:
        decode_ms(timer, position)  # Memory is touched.
    between = {position: decode_ms(timer, position) for position in positions}
    # The first token of the page that the position is in.
    borders = {p: decode_ms(timer, p // page_size * page_size) for p in positions if p >= page_size}
    return {
        "decode_1024": between[1024],
        "decode_8000": between[8000],
        "border_minus_between": max(borders[p] - between[p] for p in borders),
        "prefill_64_at_6000": statistics.median(timer.step_ms(64, 6000) for _ in range(5)),
    }


def decode_ms(timer: StepTimer, position: int) -> float:
    return statistics.median(timer.step_ms(1, position) for _ in range(21))


def spread(values: list[float]) -> dict[str, Any]:
    one = describe(values)
    assert one is not None
    ordered = sorted(values)
    return {
        "n": one.n,
        "p50": one.p50,
        "p99": ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)],
        "max": one.max,
        "sd": statistics.stdev(values),
    }


def bookkeeping_table(found: dict[str, Any]) -> list[Row]:
    rows = [["taking in a turn, ms", "p50", "p99", "sd"]]
    for num_history, kinds in found["take_in_ms"].items():
        rows += [[f"{kind}, {num_history}", *cells(one)] for kind, one in kinds.items()]
    rows += [[f"first turn with a session: {name}", *cells(one)] for name, one in found["opening_ms"].items()]
    return rows


def cells(one: dict[str, Any]) -> Row:
    return [f"{one['p50']:.3f}", f"{one['p99']:.3f}", f"{one['sd']:.3f}"]


def page_table(found: dict[str, Any]) -> list[Row]:
    rows = [["page size", *(f"waste {c}" for c in CONTEXTS), "computed again", "at once", "gave way", "steps"]]
    rows[0] += ["decode at 1K ms", "at 8K", "border", "64 rows at 6K"]
    for page_size, one in found.items():
        row = [page_size, *(f"{100 * one['waste'][str(c)]:.1f} %" for c in CONTEXTS), f"{one['tokens_again']:.1f}"]
        row += [str(one["load"][name]) for name in ("at_once", "preemptions", "steps")]
        timed = one.get("steps_ms", {})
        names = ("decode_1024", "decode_8000", "border_minus_between", "prefill_64_at_6000")
        rows.append([*row, *(f"{timed[name]:.2f}" for name in names if timed)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--piece", choices=["bookkeeping", "page-sizes"], action="append")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    pieces: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], list[Row]]]] = {
        "bookkeeping": (bookkeeping, bookkeeping_table),
        "page-sizes": (lambda: page_sizes(args.model), page_table),
    }
    results = {}
    for name in args.piece or pieces:
        measure, table = pieces[name]
        results[name] = measure()
        print(render(table(results[name])), flush=True)
    if args.out:
        args.out.write_bytes(result_document("pages", sys.orig_argv, {"twinpath": __version__}, results))


if __name__ == "__main__":
    main()
