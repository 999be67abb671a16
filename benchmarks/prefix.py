"""The second turn of a long conversation: 2,000 tokens of history, 16 new ones.

Against a fresh short prompt and against no cache.
"""

from __future__ import annotations

from typing import Any

from benchmarks.requests import Streams, fresh_ids
from benchmarks.servers import twinpath_server
from benchmarks.settings import Settings, prompt_ids
from benchmarks.table import Row
from twinpath.bench import describe, paired_ratio

NUM_HISTORY, NUM_NEW, NUM_FRESH, NUM_TOKENS = 2000, 16, 60, 16


async def run(settings: Settings) -> dict[str, Any]:
    """Every round has its own history; the answers with and without the cache must be the same text."""
    ids = prompt_ids(settings.model)
    long = (ids * 3)[: NUM_HISTORY + NUM_NEW]
    cached: list[float] = []
    fresh: list[float] = []
    uncached: list[float] = []
    hits, num_same = [], 0
    with (
        twinpath_server(settings.model, settings.log_dir, name="twinpath-cache") as on,
        twinpath_server(
            settings.model, settings.log_dir, "--no-enable-prefix-caching", name="twinpath-no-cache"
        ) as off,
    ):
        with_cache, without = Streams(on), Streams(off)
        for index in range(settings.rounds + 1):
            turn = fresh_ids(long, index, NUM_HISTORY + NUM_NEW)
            await with_cache.complete(turn[:NUM_HISTORY], 1)
            second = await with_cache.complete(turn, NUM_TOKENS)
            short = await with_cache.complete(fresh_ids(ids, 500 + index, NUM_FRESH), NUM_TOKENS)
            plain = await without.complete(turn, NUM_TOKENS)
            if index == 0:
                continue  # warm-up
            for values, record in ((cached, second), (fresh, short), (uncached, plain)):
                assert record.ttft_ms is not None
                values.append(record.ttft_ms)
            hits.append(second.cached_tokens)
            num_same += second.text == plain.text
        await with_cache.aclose()
        await without.aclose()
    return {
        "ttft_ms": {"second turn": describe(cached), "fresh 60": describe(fresh), "cache off": describe(uncached)},
        "over_fresh": paired_ratio(cached, fresh),
        "speedup_over_cache_off": paired_ratio(uncached, cached),
        "cached_tokens_min": min(hits),
        "same_answers": f"{num_same} of {settings.rounds}",
    }


def table(result: dict[str, Any]) -> list[Row]:
    rows = [["prefix cache", "TTFT p50 ms", "min-max"]]
    for name, found in result["ttft_ms"].items():
        rows.append([name, f"{found.p50:.1f}", f"{found.min:.1f}-{found.max:.1f}"])
    for name in ("over_fresh", "speedup_over_cache_off"):
        ratio = result[name]
        rows.append([name, f"{ratio.median:.2f}", f"{ratio.min:.2f}-{ratio.max:.2f}"])
    rows.append(["cached tokens, least", str(result["cached_tokens_min"])])
    rows.append(["answers equal to cache off", result["same_answers"]])
    return rows
