"""Over HTTP, client on the same machine.

Twinpath with its defaults beside llama-cpp-python's server, or a busy process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.requests import Streams, fresh_text, ms_per_token
from benchmarks.servers import llama_server, twinpath_server
from benchmarks.settings import Settings
from benchmarks.table import Row, ratio_cells
from twinpath.bench import CpuMeter, describe, paired_ratio

NUM_TOKENS = 128
NUM_TOKENS_BUSY = 96


@contextmanager
def busy_neighbour() -> Iterator[int]:
    """A process that never sleeps."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def measure(streams: Streams, index: int, num_tokens: int, neighbour: int | None = None) -> dict[str, Any]:
    meter = CpuMeter([streams.server.process.pid, *([neighbour] if neighbour else [])])
    record = await streams.complete(fresh_text(index), num_tokens)
    gaps = record.gaps_ms()
    return {
        "ttft_ms": record.ttft_ms,
        "decode_ms": statistics.median(gaps),
        "token_ms": ms_per_token(record),
        "gaps_ms": gaps,
        "pieces": len(record.piece_s),
        "tokens": record.completion_tokens,
        "others_percent": meter.others_percent(),
    }


async def run(settings: Settings) -> dict[str, Any]:
    """Servers stay up and are asked in turn."""
    with ExitStack() as stack:
        servers = [stack.enter_context(twinpath_server(settings.model, settings.log_dir, "--isa", settings.isa))]
        if settings.peers is not None:
            for threads in settings.threads:
                server = llama_server(settings.peers, settings.model, settings.log_dir, threads=threads, flash=False)
                servers.append(stack.enter_context(server))
        streams = [Streams(server) for server in servers]
        for index, stream in enumerate(streams):
            await measure(stream, 900 + index, 8)
        rounds = []
        for index in range(settings.rounds):
            turn = index % len(streams)
            order = streams[turn:] + streams[:turn]
            rounds.append({stream.server.name: await measure(stream, index, NUM_TOKENS) for stream in order})
        for stream in streams:
            await stream.aclose()
    names = [server.name for server in servers]
    result: dict[str, Any] = {"rows": _rows(names, rounds), "ratios": {}}
    peers = names[1:]
    for metric in ("decode_ms", "token_ms", "ttft_ms"):
        series = {name: [one[name][metric] for one in rounds] for name in names}
        if peers:
            best = min(peers, key=lambda name: statistics.median(series[name]))
            result["ratios"][metric] = {"theirs": best, "ratio": paired_ratio(series[names[0]], series[best])}
    return result


async def run_busy(settings: Settings) -> dict[str, Any]:
    """twinpath alone: each round once idle, once beside a busy process."""
    idle, busy = [], []
    with twinpath_server(settings.model, settings.log_dir, "--isa", settings.isa) as server:
        stream = Streams(server)
        await measure(stream, 900, 8)
        for index in range(settings.rounds):
            idle.append(await measure(stream, 2 * index, NUM_TOKENS_BUSY))
            with busy_neighbour() as neighbour:
                busy.append(await measure(stream, 2 * index + 1, NUM_TOKENS_BUSY, neighbour))
        await stream.aclose()
    rounds = [{"idle": a, "busy neighbour": b} for a, b in zip(idle, busy, strict=True)]
    ratios = {
        metric: {"theirs": "idle", "ratio": paired_ratio([b[metric] for b in busy], [a[metric] for a in idle])}
        for metric in ("decode_ms", "token_ms")
    }
    return {"rows": _rows(["idle", "busy neighbour"], rounds), "ratios": ratios}


def _rows(names: list[str], rounds: list[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "gap_ms": describe(gap for one in rounds for gap in one[name]["gaps_ms"]),
            **{
                metric: describe(one[name][metric] for one in rounds) for metric in ("decode_ms", "token_ms", "ttft_ms")
            },
            "pieces_per_token": rounds[0][name]["pieces"] / max(rounds[0][name]["tokens"], 1),
            "others_percent_max": max(one[name]["others_percent"] for one in rounds),
        }
        for name in names
    ]


def table(result: dict[str, Any]) -> list[Row]:
    rows = [["over HTTP", "TTFT ms", "decode p50", "p99", "ms/token", "others %"]]
    for row in result["rows"]:
        gap = row["gap_ms"]
        p99 = "-" if gap.p99 is None else f"{gap.p99:.1f}"
        means = f"{row['token_ms'].p50:.2f}"
        rows.append(
            [row["name"], f"{row['ttft_ms'].p50:.0f}", f"{gap.p50:.2f}", p99, means, str(row["others_percent_max"])]
        )
    for metric, found in result["ratios"].items():
        rows.append([f"{metric} / {found['theirs']}", *ratio_cells(found["ratio"])])
    return rows
