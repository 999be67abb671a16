"""What HTTP, scheduling and text cost: the same prompt and threads once in process, once as a stream at the client."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.requests import Streams, fresh_ids, ms_per_token
from benchmarks.servers import twinpath_server
from benchmarks.settings import Settings, prompt_ids
from benchmarks.table import Row
from twinpath.bench import describe

NUM_PROMPT, NUM_TOKENS = 128, 64
PAIRS_PER_ROUND = 3


async def run(settings: Settings) -> dict[str, Any]:
    """Per thread count, `rounds` x `PAIRS_PER_ROUND` pairs; differences are HTTP minus in-process, in milliseconds."""
    ids = prompt_ids(settings.model)
    return {"rows": [await _measure(settings, threads, ids) for threads in settings.threads]}


async def _measure(settings: Settings, threads: int, ids: list[int]) -> dict[str, Any]:
    ttft, gap, mean, same = [], [], [], True
    flags = ("--threads", str(threads), "--isa", settings.isa)
    with (
        settings.worker("twinpath", threads, "--fresh-pages") as worker,
        twinpath_server(settings.model, settings.log_dir, *flags) as server,
    ):
        stream = Streams(server)
        for index in range(settings.rounds * PAIRS_PER_ROUND + 1):
            prompt = fresh_ids(ids, index, NUM_PROMPT)
            inside = worker.ask("generate", prompt=prompt, num_tokens=NUM_TOKENS)
            record = await stream.complete(prompt, NUM_TOKENS)
            if index == 0:
                continue  # warm-up
            assert record.ttft_ms is not None
            ttft.append((record.ttft_ms, inside["ttft_ms"]))
            gap.append((statistics.median(record.gaps_ms()), statistics.median(inside["token_ms"])))
            mean.append((ms_per_token(record), statistics.mean(inside["token_ms"])))
            same = same and record.completion_tokens in (0, NUM_TOKENS)
        await stream.aclose()
    pairs = {"ttft_ms": ttft, "token_p50_ms": gap, "token_mean_ms": mean}
    return {
        "threads": threads,
        "full_length": same,
        **{
            name: {"http": describe(a for a, _ in both), "inside": describe(b for _, b in both)}
            for name, both in pairs.items()
        },
        "cost": {name: describe(a - b for a, b in both) for name, both in pairs.items()},
    }


def table(result: dict[str, Any]) -> list[Row]:
    rows = [["HTTP cost", "over HTTP p50", "in process p50", "paired difference p50", "IQR", "n"]]
    for row in result["rows"]:
        for name, cost in row["cost"].items():
            both = row[name]
            spread = f"{cost.p25:+.2f} to {cost.p75:+.2f}"
            cells = [f"{both['http'].p50:.2f}", f"{both['inside'].p50:.2f}", f"{cost.p50:+.2f}", spread, str(cost.n)]
            rows.append([f"{row['threads']} threads, {name}", *cells])
    return rows
