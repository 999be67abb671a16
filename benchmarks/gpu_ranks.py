"""Models that several GPUs share: `python -m benchmarks.gpu_ranks --world 2`, on one host with so many cards.

Random weights in real shapes; every rank is a process, and a step is a graph that all replay. Messages: how long a sum
over the ranks takes in a captured graph, by our one-shot kernels and by the library. Times are medians of device time
on rank 0. Results go to benchmarks/results as JSON; the table comes last. With --one-card all ranks are on one card:
that shows that it works, and no time of it means anything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.gpu_decode import DEVICE, build_step, event_times, floor_ms, read_rate
from benchmarks.gpu_models import GPU_MODELS, with_layers
from twinpath.engine.cuda.collectives import Collective, PeerCollective
from twinpath.engine.cuda.decode import DecodeStep
from twinpath.engine.cuda.ranks import RankGroup, form_group
from twinpath.engine.cuda.shards import Shard, check_divisible
from twinpath.engine.cuda.weights import random_weights
from twinpath.kernels.all_reduce import launch

CASES = [*(("llama-3.1-8b", batch) for batch in (1, 8, 32)), *(("llama-3.2-1b", batch) for batch in (1, 8))]
CONTEXT = 1024
MESSAGE_BYTES = (4 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20)
PER_GRAPH = 64


def captured_us(run: Callable[[], None], n: int) -> float:
    """Median us of one of `PER_GRAPH` calls in a graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(PER_GRAPH):
            run()
    return round(statistics.median(event_times(graph.replay, n)) / PER_GRAPH * 1e3, 2)


def measure_messages(ranks: Collective, n: int) -> list[dict[str, object]]:
    """Sums of so many bytes of bfloat16; and the decode step's, of one row of 4,096 with the residual and the norm."""
    rows: list[dict[str, object]] = []
    exchange = ranks.exchange
    for num_bytes in MESSAGE_BYTES:
        x = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device=DEVICE)
        row: dict[str, object] = {"bytes": num_bytes, "one_shot_us": None, "library_us": None}
        if exchange is not None and launch.fits(x, exchange):
            row["one_shot_us"] = captured_us(lambda x=x: launch.add_up(x, exchange), n)  # type: ignore[misc]
        library = ranks._large if isinstance(ranks, PeerCollective) else ranks
        if library is not None:
            row["library_us"] = captured_us(lambda x=x, library=library: library.add_up(x), n)  # type: ignore[misc]
        rows.append(row)
    if exchange is not None:
        partial, residual, gain = (torch.zeros(1, 4096, device=DEVICE) for _ in range(3))
        scaled = torch.zeros(1, 4096, dtype=torch.bfloat16, device=DEVICE)
        squares = torch.zeros(launch.residual_parts(4096, whole_rows=False), 64, device=DEVICE)
        outputs = (residual, scaled, squares)
        for name, view in (("with the residual and the norm", exchange), ("the same without ranks", None)):
            us = captured_us(
                lambda view=view: launch.reduce_residual(partial, None, None, gain[0], *outputs, 1e-5, view),  # type: ignore[misc]
                n,
            )
            rows.append({"bytes": name, "one_shot_us": us, "library_us": None})
    return rows


def measure_steps(ranks: Collective, num_layers: int | None, n: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    bytes_per_s = read_rate(1 << 30)
    for name in dict.fromkeys(name for name, _ in CASES):
        spec = GPU_MODELS[name] if num_layers is None else with_layers(GPU_MODELS[name], num_layers)
        check_divisible(spec, ranks.shard.world)
        weights = random_weights(spec, DEVICE, torch.bfloat16, CONTEXT + n + 64, shard=ranks.shard)
        for batch in (batch for model, batch in CASES if model == name):
            for persistent in (True, False) if batch <= 8 else (False,):
                made = build_step(weights, batch, CONTEXT, n + 8, ranks=ranks, persistent=persistent)
                if persistent and not made.is_persistent(batch):
                    continue
                rows.append(_timed(name, made, batch, n) | {"floor_ms": floor_ms(weights, batch, CONTEXT, bytes_per_s)})
                torch.cuda.empty_cache()
    return rows


def _timed(name: str, step: DecodeStep, batch: int, n: int) -> dict[str, object]:
    times = sorted(event_times(step.capture(batch).replay, n))
    return {
        "model": name,
        "batch": batch,
        "one_kernel": step.is_persistent(batch),
        "n": n,
        "p50_ms": round(statistics.median(times), 4),
        "p99_ms": round(times[min(n - 1, round(0.99 * n))], 4),
        "tokens": step.buffers.argmax[:batch].tolist(),
    }


def print_table(result: dict[str, object]) -> None:
    steps, messages = result["steps"], result["messages"]
    assert isinstance(steps, list) and isinstance(messages, list)
    print(f"{result['world']} x {result['device']}")
    for row in messages:
        print(f"sum {row['bytes']!s:>31}: one shot {row['one_shot_us']} us, library {row['library_us']} us")
    for row in steps:
        kind = "one kernel" if row["one_kernel"] else "chain or products"
        share = row["floor_ms"] / row["p50_ms"]
        print(f"{row['model']:14} batch {row['batch']:2} {kind:17} {row['p50_ms']:.3f} ms, {share:.1%} of the floor")


def measure(ranks: RankGroup, arguments: argparse.Namespace) -> dict[str, object]:
    messages = measure_messages(ranks.collective, arguments.n)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "world": arguments.world,
        "one_card": arguments.one_card,
        "torch": torch.__version__,
        "messages": messages,
        "steps": measure_steps(ranks.collective, arguments.layers, arguments.n),
        "command": f"python -m benchmarks.gpu_ranks --world {arguments.world} --n {arguments.n}",
        "commit": arguments.commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--n", type=int, default=60)
    parser.add_argument("--layers", type=int, help="fewer than the model has, for a quick look")
    parser.add_argument("--one-card", action="store_true")
    parser.add_argument("--commit", default="", help="stands in the result")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu-ranks.json"))
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rank = arguments.rank
    if not arguments.one_card and torch.cuda.device_count() < arguments.world:
        sys.exit(f"--world {arguments.world} needs as many GPUs, torch sees {torch.cuda.device_count()}")
    store = TCPStore("127.0.0.1", arguments.port, arguments.world, rank == 0, wait_for_workers=False)
    others = [] if rank else [start(other, store.port) for other in range(1, arguments.world)]
    device = torch.device("cuda", 0 if arguments.one_card else rank)
    torch.cuda.set_device(device)
    shard = Shard(rank, arguments.world)
    ranks = form_group(store, shard, device, fixed_order=False, shares_card=arguments.one_card)
    result = measure(ranks, arguments)
    store.set(f"done/{rank}", json.dumps([row["tokens"] for row in result["steps"]]))  # type: ignore[attr-defined]
    if rank:
        store.get("done/0")
        return
    said = [store.get(f"done/{other}") for other in range(arguments.world)]
    result["ranks_agree"] = len(set(said)) == 1
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_table(result)
    print("all ranks chose the same tokens" if result["ranks_agree"] else "RANKS CHOSE DIFFERENT TOKENS")
    for other in others:
        other.wait(60.0)


def start(rank: int, port: int) -> subprocess.Popen[bytes]:
    arguments = [*sys.argv[1:], "--rank", str(rank), "--port", str(port)]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.gpu_ranks", *arguments], stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
