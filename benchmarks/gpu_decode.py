"""Decode steps on one GPU: `python -m benchmarks.gpu_decode`. Random weights in real shapes; a step is a graph replay.

Weights exceed the L2 cache by far, so every step reads them from memory. The floor of a step is its bytes (weights, and
keys and values of the context) over the read rate measured in the same run. Times are medians; jitter is what the host
sees. Results go to benchmarks/results as JSON; the table comes last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton
import triton.language as tl

from benchmarks.gpu_models import GPU_MODELS
from twinpath.engine.cuda.collectives import Collective
from twinpath.engine.cuda.decode import DecodeStep
from twinpath.engine.cuda.weights import PackedWeights, allocate_kv, random_weights
from twinpath.model.spec import ModelSpec

PAGE_SIZE = 16
#: The current card.
DEVICE = torch.device("cuda")
#: (model, batch, context in tokens).
DEFAULT_CASES = [
    *(("llama-3.1-8b", batch, 1024) for batch in (1, 2, 4, 8, 16, 32, 64)),
    ("llama-3.1-8b", 1, 32_768),
    ("llama-3.1-8b", 1, 131_000),
    *(("llama-3.2-1b", batch, 1024) for batch in (1, 8)),
    ("qwen3-8b", 1, 1024),
    ("qwen2.5-7b", 1, 1024),
]


@dataclass(frozen=True, slots=True)
class Row:
    """One case. Times in ms of device time; floor_share is floor over median."""

    model: str
    batch: int
    context_tokens: int
    one_kernel: bool
    n: int
    p50_ms: float
    p99_ms: float
    floor_ms: float
    floor_share: float


@dataclass(frozen=True, slots=True)
class Jitter:
    """Replay and wait, seen by the host, over consecutive steps."""

    model: str
    num_steps: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@triton.jit
def _read(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        total += tl.load(x_ptr + start + tl.arange(0, BLOCK), eviction_policy="evict_first")
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


def read_rate(num_bytes: int = 4 << 30) -> float:
    """Bytes per second of the fastest of several ways to sum a large array."""
    x = torch.ones(num_bytes // 4, dtype=torch.int32, device=DEVICE)
    out = torch.empty(8192, dtype=torch.int32, device=DEVICE)
    best_ms = float("inf")
    for programs_per_sm, block in ((4, 4096), (8, 4096), (16, 4096), (16, 2048), (8, 8192)):
        grid = (132 * programs_per_sm,)
        times = event_times(lambda grid=grid, block=block: _read[grid](x, out, x.numel(), BLOCK=block, num_warps=8), 6)
        best_ms = min(best_ms, *times)
    return num_bytes / best_ms * 1e3


def event_times(run: object, n: int) -> list[float]:
    """Device ms of each of n calls, after two that do not count."""
    assert callable(run)
    for _ in range(2):
        run()
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(n)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def build_step(
    weights: PackedWeights,
    batch: int,
    context: int,
    spare: int,
    *,
    ranks: Collective | None = None,
    persistent: bool = True,
) -> DecodeStep:
    """A step over full pages of random keys and values, each row on pages of its own, the same at every call."""
    torch.manual_seed(0)
    num_pages = (context + spare) // PAGE_SIZE + 1
    kv = allocate_kv(weights.spec, batch * num_pages, PAGE_SIZE, DEVICE, torch.bfloat16)
    for part in (*kv.k, *kv.v):
        part.normal_()
    step = DecodeStep(weights, kv, max_pages=num_pages, ranks=ranks, persistent=persistent)
    order = torch.randperm(batch * num_pages, device=DEVICE).view(batch, num_pages)
    step.buffers.block_tables[:batch] = order.int()
    step.buffers.tokens[:batch] = torch.arange(batch, device=DEVICE).int()
    step.buffers.positions[:batch] = context - 1
    return step


def floor_ms(weights: PackedWeights, batch: int, context: int, bytes_per_s: float) -> float:
    spec = weights.spec
    kv_bytes = 4 * spec.num_layers * spec.num_kv_heads * spec.head_dim * batch * context
    return (weights.step_bytes + kv_bytes) / bytes_per_s * 1e3


def measure(name: str, weights: PackedWeights, batch: int, context: int, bytes_per_s: float, n: int) -> Row:
    step = build_step(weights, batch, context, n + 8)
    times = sorted(event_times(step.capture(batch).replay, n))
    median, floor = statistics.median(times), floor_ms(weights, batch, context, bytes_per_s)
    p99 = times[min(n - 1, round(0.99 * n))]
    one_kernel = step.is_persistent(batch)
    return Row(name, batch, context, one_kernel, n, round(median, 4), round(p99, 4), round(floor, 4), floor / median)


def measure_jitter(name: str, weights: PackedWeights, num_steps: int) -> Jitter:
    """Steps one after another at about 1024 tokens, the host waiting for each."""
    step = build_step(weights, 1, 1024, 2 * PAGE_SIZE)
    graph, times = step.capture(1), []
    for i in range(num_steps + 10):
        if i % PAGE_SIZE == 0:
            step.buffers.positions[:1] = 1023
            torch.cuda.synchronize()
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.current_stream().synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    times = sorted(times[10:])
    return Jitter(
        name,
        num_steps,
        round(statistics.median(times), 4),
        round(times[round(0.99 * num_steps)], 4),
        round(times[-1], 4),
    )


def run(cases: list[tuple[str, int, int]], n: int, jitter_steps: int) -> dict[str, object]:
    bytes_per_s = read_rate()
    rows: list[Row] = []
    jitters: list[Jitter] = []
    for name in dict.fromkeys(case[0] for case in cases):
        spec: ModelSpec = GPU_MODELS[name]
        contexts = [context for model, _, context in cases if model == name]
        weights = random_weights(spec, DEVICE, torch.bfloat16, max(contexts) + n + 64)
        for model, batch, context in cases:
            if model == name:
                rows.append(measure(name, weights, batch, context, bytes_per_s, n))
                print(rows[-1], flush=True)
                torch.cuda.empty_cache()
        if jitter_steps and name.startswith("llama"):
            jitters.append(measure_jitter(name, weights, jitter_steps))
            print(jitters[-1], flush=True)
        del weights
        torch.cuda.empty_cache()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "read_bytes_per_s": bytes_per_s,
        "rows": [asdict(row) for row in rows],
        "jitter": [asdict(jitter) for jitter in jitters],
    }


def print_table(result: dict[str, object]) -> None:
    rows, jitters = result["rows"], result["jitter"]
    assert isinstance(rows, list) and isinstance(jitters, list)
    print(f"{result['device']}, reads {float(str(result['read_bytes_per_s'])) / 1e12:.2f} TB/s")
    print(f"{'model':14} {'batch':>5} {'context':>7} {'p50 ms':>8} {'p99 ms':>8} {'floor':>7} {'share':>6}")
    for row in rows:
        print(
            f"{row['model']:14} {row['batch']:5} {row['context_tokens']:7} {row['p50_ms']:8.3f} {row['p99_ms']:8.3f} "
            f"{row['floor_ms']:7.3f} {row['floor_share']:6.1%}"
        )
    for j in jitters:
        ratio = f"p99/p50 {j['p99_ms'] / j['p50_ms']:.3f}, max/p50 {j['max_ms'] / j['p50_ms']:.3f}"
        print(f"jitter {j['model']}, {j['num_steps']} steps: p50 {j['p50_ms']:.3f} ms, {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=60, help="timed steps per case")
    parser.add_argument("--jitter-steps", type=int, default=10_000)
    parser.add_argument("--commit", default="", help="stands in the result")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu-decode.json"))
    arguments = parser.parse_args()
    result = run(DEFAULT_CASES, arguments.n, arguments.jitter_steps)
    result["commit"] = arguments.commit
    result["command"] = f"python -m benchmarks.gpu_decode --n {arguments.n} --jitter-steps {arguments.jitter_steps}"
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_table(result)


if __name__ == "__main__":
    main()
