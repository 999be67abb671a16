"""What HTTP, scheduling and text cost: the same prompt and threads once in process, once as a stream at the client."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

from benchmarks.requests import Streams, fresh_ids, ms_per_token
from benchmarks.servers import twinpath_server
from benchmarks.settings import Settings, prompt_ids
from benchmarks.table import Row
from benchmarks.worker import Worker
from twinpath.bench import RequestRecord, describe, median_interval

#: Short prompts: what HTTP costs does not depend on the length, and what a prefill costs varies by its hundredth part.
NUM_PROMPT, NUM_TOKENS = 32, 64
#: Processes of the same code differ by a few percent, by where their memory happens to lie: each launch is a sample.
LAUNCHES_PER_ROUND, FIRST_TOKEN_PAIRS, TOKEN_PAIRS, NUM_FIRST_TOKENS = 2, 40, 4, 2


async def run(settings: Settings) -> dict[str, Any]:
    """Per thread count, HTTP minus in-process over several launches of both, in milliseconds."""
    ids = prompt_ids(settings.model)
    return {"rows": [await _measure(settings, threads, ids) for threads in settings.threads]}


async def _measure(settings: Settings, threads: int, ids: list[int]) -> dict[str, Any]:
    """Medians over launches of each launch's median pair."""
    launches = [await _launch(settings, threads, ids) for _ in range(settings.rounds * LAUNCHES_PER_ROUND)]
    return {
        "threads": threads,
        "full_length": all(launch.pop("full_length") for launch in launches),
        "launches": launches,
        **{
            name: {what: describe(launch[name][what] for launch in launches) for what in ("http", "inside", "cost")}
            for name in launches[0]
        },
        "interval": {name: median_interval([launch[name]["cost"] for launch in launches]) for name in launches[0]},
    }


async def _launch(settings: Settings, threads: int, ids: list[int]) -> dict[str, Any]:
    """Both sides started anew: medians in milliseconds of either, and of the differences within pairs."""
    flags = ("--threads", str(threads), "--isa", settings.isa)
    with (
        settings.worker("twinpath", threads) as worker,
        twinpath_server(settings.model, settings.log_dir, *flags) as server,
    ):
        pair = Pair(worker, Streams(server), ids)
        await pair.run(NUM_TOKENS)  # warm-up
        short = [await pair.run(NUM_FIRST_TOKENS) for _ in range(FIRST_TOKEN_PAIRS)]
        long = [await pair.run(NUM_TOKENS) for _ in range(TOKEN_PAIRS)]
        await pair.stream.aclose()
    pairs: dict[str, list[tuple[Any, Any]]] = {
        "ttft_ms": [(record.ttft_ms, inside["ttft_ms"]) for record, inside in short],
        "token_p50_ms": [(median(record.gaps_ms()), median(inside["token_ms"])) for record, inside in long],
        "token_mean_ms": [(ms_per_token(record), mean(inside["token_ms"])) for record, inside in long],
    }
    return {
        "full_length": all(record.completion_tokens in (0, NUM_TOKENS) for record, _ in long),
        **{
            name: {
                "http": median(a for a, _ in both),
                "inside": median(b for _, b in both),
                "cost": median(a - b for a, b in both),
            }
            for name, both in pairs.items()
        },
    }


class Pair:
    """The same prompt once in process and once over HTTP, each of them first every other time."""

    def __init__(self, worker: Worker, stream: Streams, ids: list[int]) -> None:
        self.stream = stream
        self._worker, self._ids, self._num_runs = worker, ids, 0

    async def run(self, num_tokens: int) -> tuple[RequestRecord, dict[str, Any]]:
        self._num_runs += 1
        prompt = fresh_ids(self._ids, self._num_runs, NUM_PROMPT)
        if self._num_runs % 2:
            inside = self._worker.ask("generate", prompt=prompt, num_tokens=num_tokens)
            return await self.stream.complete(prompt, num_tokens), inside
        record = await self.stream.complete(prompt, num_tokens)
        return record, self._worker.ask("generate", prompt=prompt, num_tokens=num_tokens)


def table(result: dict[str, Any]) -> list[Row]:
    rows = [["HTTP cost", "over HTTP", "in process", "paired difference", "95 %", "launches from, to", "launches"]]
    for row in result["rows"]:
        for name, (low, high) in row["interval"].items():
            cost = row[name]["cost"]
            cells = [f"{row[name]['http'].p50:.2f}", f"{row[name]['inside'].p50:.2f}", f"{cost.p50:+.2f}"]
            spread = [f"{low:+.2f} to {high:+.2f}", f"{cost.min:+.2f} to {cost.max:+.2f}", str(cost.n)]
            rows.append([f"{row['threads']} threads, {name}", *cells, *spread])
    return rows
