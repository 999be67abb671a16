"""The CUDA engine on one card: sampler, attention, prefill, steps over submit and poll, jitter, start.

    python -m benchmarks.gpu_engine --parts sampler,prefill,steps --model llama-8b --json out.json

Random weights of real shapes. Device times are CUDA events around graph replays; engine times are the caller's.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_models import LLAMA_1B, LLAMA_8B, with_layers
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.weights import random_weights
from twinpath.kernels.cluster_sampler.kernel import build_sampler
from twinpath.kernels.prefill_attention.launch import attend
from twinpath.kernels.prefill_attention.spec import AttentionTiling, rows_per_tile
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows
from twinpath.kernels.sampler.launch import sample_rows
from twinpath.kernels.sampler.slots import fill_tables
from twinpath.kernels.sampler.spec import SlotState, Workspace, settings
from twinpath.model.spec import ModelSpec
from twinpath.types import PENDING_TOKEN, SamplingParams, SlotInit, StepPlan

#: To try a script out, also on a CPU.
TINY = replace(
    with_layers(LLAMA_1B, 2), hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, vocab_size=50_000
)
MODELS = {"llama-8b": LLAMA_8B, "llama-1b": LLAMA_1B, "tiny": TINY}
DEVICE = torch.device("cuda")

SAMPLER_SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "everything": {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
        "logit_bias": {5: 1.0},
        "min_tokens": 4,
        "stop_token_ids": (2,),
    },
}
SAMPLER_SETTINGS["everything, 20 log-probabilities"] = SAMPLER_SETTINGS["everything"] | {"logprobs": 20}


def device_ms(run: Callable[[], None], repeats: int = 20, copies: int = 1) -> float:
    """Median device time of `run`, captured `copies` times in one graph so that launches overlap as in a step."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            run()
    times = []
    for _ in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / copies)
    return statistics.median(times[3:])


def bench_sampler(vocab_size: int = 128_256) -> list[dict[str, Any]]:
    """Time added to a step, by settings, batch and how flat the logits are (standard deviation)."""
    return [
        {
            "settings": name,
            "batch": batch,
            "logit_std": scale,
            "us": round(sampler_us(name, batch, scale, vocab_size), 2),
        }
        for batch in (1, 8, 64)
        for name in SAMPLER_SETTINGS
        for scale in (1.0, 4.0)
    ]


def sampler_us(name: str, batch: int, scale: float, vocab_size: int) -> float:
    state = SlotState.allocate(batch, vocab_size, 4096, DEVICE)
    work = Workspace.allocate(batch, vocab_size, DEVICE)
    slots = torch.arange(batch, dtype=torch.int32, device=DEVICE)
    positions, masks = torch.full_like(slots, 1000), torch.full_like(slots, -1)
    params = SamplingParams(max_tokens=100, seed=7, **SAMPLER_SETTINGS[name])
    history = np.random.default_rng(0).integers(0, vocab_size, 1000).astype(np.int32)
    for slot in range(batch):
        floats, ints = settings(params, 900)
        state.floats[slot], state.ints[slot] = torch.from_numpy(floats), torch.from_numpy(ints)
        fill_tables(state, slot, params, history, 900)
    logits = scale * torch.randn(batch, vocab_size, device=DEVICE)
    sample = build_sampler(vocab_size, DEVICE) or sample_rows

    def run() -> None:
        sample(logits, slots, positions, masks, state, work, num_rows=batch, greedy=name == "greedy")

    return 1000 * device_ms(run, copies=8)


#: Lanes, keys, warps, stages.
TILINGS = ((128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 8, 2), (64, 128, 4, 3))


def bench_attention(spec: ModelSpec, contexts: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """One layer's attention of `rows` new tokens after `before` cached ones, for several tilings."""
    found = []
    for before, num_rows in contexts:
        flops = 4 * spec.num_heads * spec.head_dim * (num_rows * before + num_rows * (num_rows + 1) / 2)
        for tiling in TILINGS:
            row: dict[str, Any] = {"before": before, "rows": num_rows, "tiling": tiling}
            try:
                ms = attention_ms(spec, before, num_rows, tiling_of(*tiling))
                row |= {"us": round(1000 * ms, 1), "tflops": round(flops / ms / 1e9)}
            except Exception as error:
                row["error"] = str(error)[:80]
            found.append(row)
    return found


def tiling_of(lanes: int, keys: int, warps: int, stages: int) -> AttentionTiling:
    return AttentionTiling(lanes, keys, warps, warps_of_long=warps, stages=stages)


def attention_ms(spec: ModelSpec, before: int, num_rows: int, tiling: AttentionTiling) -> float:
    shape = HeadShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, 16, spec.norm_eps)
    num_pages = -(-(before + num_rows) // 16)
    size = (num_pages, spec.num_kv_heads, 16, spec.head_dim)
    keys, values = (torch.randn(size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    tables = torch.randperm(num_pages, device=DEVICE).int()[None]
    q = torch.randn(num_rows, spec.num_heads * spec.head_dim, device=DEVICE, dtype=torch.bfloat16)
    out = torch.empty_like(q)
    step = rows_per_tile(shape, tiling)
    tiles = [(r, min(step, num_rows - r), before + r, 0) for r in range(0, num_rows, step)]
    rows = Rows(tables, tables, tables, torch.tensor(tiles, dtype=torch.int32, device=DEVICE), tables, tables)
    return device_ms(lambda: attend(q, rows, (keys, values), out, spec.attn_scale, None, shape, tiling), repeats=5)


@dataclass
class Stream:
    """One request as the benchmark drives it: its pages follow each other."""

    slot: int
    first_page: int
    tokens: list[int]
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=1 << 30, temperature=0.0))


class Driver:
    """Submits plans to an engine and times them."""

    def __init__(self, engine: CudaEngine) -> None:
        self.engine = engine
        self.steps = 0

    def plan(self, parts: Sequence[tuple[Stream, int, Sequence[int], bool]], bind: bool = False) -> StepPlan:
        """`parts`: (stream, start, tokens, sample)."""
        size = self.engine.info.page_size
        self.steps += 1
        ends = [start + len(tokens) for _, start, tokens, _ in parts]
        width = max(-(-end // size) for end in ends)
        tables = np.full((len(parts), width), -1, np.int32)
        for row, ((stream, *_), end) in enumerate(zip(parts, ends, strict=True)):
            num = -(-end // size)
            tables[row, :num] = np.arange(stream.first_page, stream.first_page + num)
        inits = tuple(SlotInit(s.slot, s.sampling, np.array(s.tokens, np.int32), len(s.tokens)) for s, *_ in parts)
        return StepPlan(
            step_id=self.steps,
            slots=np.array([s.slot for s, *_ in parts], np.int32),
            starts=np.array([start for _, start, *_ in parts], np.int32),
            lengths=np.array([len(tokens) for *_, tokens, _ in parts], np.int32),
            sample=np.array([sample for *_, sample in parts]),
            tokens=np.concatenate([np.asarray(tokens, np.int32) for *_, tokens, _ in parts]),
            block_tables=tables,
            layer_begin=0,
            layer_end=self.engine.info.num_layers,
            inits=inits if bind else (),
        )

    def prefill_ms(self, stream: Stream, chunk: int) -> float:
        """From the first submit to the first token, chunks queued as deep as the engine allows."""
        prompt = stream.tokens
        begins = list(range(0, len(prompt), chunk))
        plans = [self.plan([(stream, b, prompt[b : b + chunk], b + chunk >= len(prompt))], bind=b == 0) for b in begins]
        began_s = time.perf_counter()
        submitted = 0
        for done in range(len(plans)):
            while submitted < len(plans) and submitted - done < self.engine.info.depth:
                self.engine.submit(plans[submitted])
                submitted += 1
            result = self.engine.poll()
            assert result is not None and not result.failures, result
        return 1000 * (time.perf_counter() - began_s)

    def decode_gaps_ms(self, streams: Sequence[Stream], num_steps: int) -> list[float]:
        """Times between results of `num_steps` decode steps, `depth` of them outstanding."""
        ends, submitted, position = [], 0, [len(s.tokens) for s in streams]
        for done in range(num_steps):
            while submitted < num_steps and submitted - done < self.engine.info.depth:
                parts = [(s, position[i] + submitted, [PENDING_TOKEN], True) for i, s in enumerate(streams)]
                self.engine.submit(self.plan(parts))
                submitted += 1
            result = self.engine.poll()
            assert result is not None and not result.failures, result
            ends.append(time.perf_counter())
        return [1000 * (b - a) for a, b in pairwise(ends)]


def spread(values: Sequence[float]) -> dict[str, float]:
    ranked = sorted(values)

    def at(share: float) -> float:
        return round(ranked[min(len(ranked) - 1, math.ceil(share * len(ranked)) - 1)], 4)

    return {
        "n": len(ranked),
        "p50": at(0.5),
        "p99": at(0.99),
        "max": at(1.0),
        "p99_over_p50": round(at(0.99) / at(0.5), 4),
    }


def open_engine(spec: ModelSpec, **options: Any) -> tuple[CudaEngine, dict[str, Any]]:
    began_s = time.perf_counter()
    weights = random_weights(spec, DEVICE, torch.bfloat16, 131_072)
    torch.cuda.synchronize()
    drawn_s = time.perf_counter()
    engine = CudaEngine(weights, CudaOptions(max_step_tokens=8192, **options))
    torch.cuda.synchronize()
    start = {"weights_s": round(drawn_s - began_s, 2), "engine_s": round(time.perf_counter() - drawn_s, 2)}
    return engine, {**start, "facts": engine.facts}


def prompt(length: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 30_000, length)]


def bench_prefill(engine: CudaEngine, longest: int) -> list[dict[str, Any]]:
    driver, found = Driver(engine), []
    for length in (16, 32, 64, 128, 256, 512, 1024, 2048, 8192):
        num = 303 if length <= 256 else 23
        times = [driver.prefill_ms(Stream(0, 0, prompt(length, i)), 8192) for i in range(num)][3:]
        found.append({"tokens": length, **spread(times)})
    for chunk in (2048, 4096, 8192):
        times = [driver.prefill_ms(Stream(0, 0, prompt(longest, i)), chunk) for i in range(2)]
        found.append({"tokens": longest, "chunk": chunk, "ms": round(min(times), 1)})
    cached = Stream(0, 0, prompt(longest, 0))
    times = []
    for i in range(10):
        plan = driver.plan([(cached, longest, prompt(128, 100 + i), False)], bind=True)
        began_s = time.perf_counter()
        engine.submit(plan)
        engine.poll()
        times.append(1000 * (time.perf_counter() - began_s))
    found.append({"tokens": 128, "after": longest, **spread(times)})
    return found


def bench_steps(engine: CudaEngine, num_steps: int) -> list[dict[str, Any]]:
    driver, found = Driver(engine), []
    for batch, setting, steps in (
        (1, {}, num_steps),
        (8, {}, 400),
        (32, {}, 200),
        (1, SAMPLER_SETTINGS["everything"], 400),
    ):
        sampling = SamplingParams(max_tokens=1 << 30, **({"temperature": 0.0} | setting))
        streams = [Stream(i, i * 800, prompt(1024, i), sampling) for i in range(batch)]
        for stream in streams:
            driver.prefill_ms(stream, 8192)
        gaps = driver.decode_gaps_ms(streams, steps)[5:]
        found.append({"batch": batch, "context": 1024, "sampling": bool(setting), **spread(gaps)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="sampler,attention,prefill,steps")
    parser.add_argument("--model", default="llama-8b", choices=MODELS)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--longest", type=int, default=32_768)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    report: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": arguments.model,
    }

    def note(name: str, rows: Any) -> None:
        report[name] = rows
        for row in rows if isinstance(rows, list) else [rows]:
            print(name, json.dumps(row), flush=True)

    spec = MODELS[arguments.model]
    if "sampler" in parts:
        note("sampler", bench_sampler())
    if "attention" in parts:
        note("attention", bench_attention(spec, ((0, 128), (0, 8192), (24_576, 8192), (32_768, 128))))
    if {"prefill", "steps"} & set(parts):
        engine, start = open_engine(spec)
        note("start", start)
        if "prefill" in parts:
            note("prefill", bench_prefill(engine, arguments.longest))
        if "steps" in parts:
            note("steps", bench_steps(engine, arguments.steps))
        engine.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
