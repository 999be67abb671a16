"""Streams and short requests beside long prompts, over HTTP: `python -m benchmarks.lanes MODEL.gguf`.

Every arm is a server of its own; they stay up and take turns. A round of an arm: two streams alone, short requests
alone, one long prompt alone, then all at once: two streams, a short request every second, long prompts back to back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.requests import Streams, fresh_ids
from benchmarks.servers import twinpath_server
from benchmarks.settings import Settings, prompt_ids
from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import RequestRecord, describe, result_document

#: Budget A and B of the lanes, and the step sizes that chunked prefill alone would offer.
ARMS = {
    "lanes 2.0": ("--lanes", "on", "--itl-budget", "2.0"),
    "lanes 3.5": ("--lanes", "on", "--itl-budget", "3.5"),
    **{f"off {n}": ("--lanes", "off", "--max-num-batched-tokens", str(n)) for n in (64, 128, 256, 512, 2048)},
}
NUM_STREAMS = 2
STREAM_PROMPT, STREAM_TOKENS, SHORT_PROMPT, SHORT_TOKENS = 32, 96, 64, 4
SHORT_EVERY_S = 1.0
#: Runs of the streams alone: a p50 that others are measured by needs more than one.
NUM_ALONE, NUM_SHORT_ALONE = 5, 5


class Load:
    """What one arm is sent. Every prompt starts differently, over all rounds."""

    def __init__(self, streams: Streams, ids: list[int], long_tokens: int) -> None:
        self._streams = streams
        self._ids = ids * -(-long_tokens // len(ids))
        self._long_tokens = long_tokens
        self._index = 0

    async def send(self, num_prompt: int, num_tokens: int) -> RequestRecord:
        self._index += 1
        return await self._streams.complete(fresh_ids(self._ids, self._index, num_prompt), num_tokens)

    async def long(self) -> RequestRecord:
        return await self.send(self._long_tokens, 1)

    async def stream_until(self, done: asyncio.Event) -> list[RequestRecord]:
        """Streams one after another; each runs to its end."""
        records = []
        while not done.is_set():
            records.append(await self.send(STREAM_PROMPT, STREAM_TOKENS))
        return records

    async def short_until(self, done: asyncio.Event) -> list[RequestRecord]:
        """One every second, whether or not the last was answered."""
        tasks = []
        while not done.is_set():
            tasks.append(asyncio.create_task(self.send(SHORT_PROMPT, SHORT_TOKENS)))
            await asyncio.sleep(SHORT_EVERY_S)
        return await asyncio.gather(*tasks)


async def measure(load: Load, num_long: int) -> dict[str, Any]:
    """One round: gaps and first tokens alone and beside `num_long` long prompts."""
    alone: list[RequestRecord] = []
    for _ in range(NUM_ALONE):
        alone += await asyncio.gather(*(load.send(STREAM_PROMPT, STREAM_TOKENS) for _ in range(NUM_STREAMS)))
    short_alone = [await load.send(SHORT_PROMPT, SHORT_TOKENS) for _ in range(NUM_SHORT_ALONE)]
    solo = await load.long()
    done = asyncio.Event()
    others = [asyncio.create_task(load.stream_until(done)) for _ in range(NUM_STREAMS)]
    others.append(asyncio.create_task(load.short_until(done)))
    longs = [await load.long() for _ in range(num_long)]
    begin_s, end_s = longs[0].intended_s, longs[-1].done_s or 0.0
    done.set()
    *streams, short = await asyncio.gather(*others)
    pieces = [record.piece_s for records in streams for record in records]
    gaps = [
        (after - before) * 1e3
        for times in pieces
        for before, after in pairwise(times)
        if begin_s <= before and after <= end_s
    ]
    return {
        "idle_gaps_ms": [gap for record in alone for gap in record.gaps_ms()],
        "gaps_ms": gaps,
        "idle_ttft_ms": [record.ttft_ms for record in short_alone],
        "ttft_ms": [record.ttft_ms for record in short],
        "solo_tokens_per_s": solo.prompt_tokens / (solo.ttft_ms or 0.0) * 1e3,
        "tokens_per_s": sum(record.prompt_tokens for record in longs) / (end_s - begin_s),
    }


async def run(settings: Settings, arms: dict[str, tuple[str, ...]], long_tokens: int, num_long: int) -> dict[str, Any]:
    ids = prompt_ids(settings.model)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    with ExitStack() as stack:
        loads: dict[str, Load] = {}
        closers: list[Callable[[], Awaitable[None]]] = []
        for name, flags in arms.items():
            server = twinpath_server(settings.model, settings.log_dir, *flags, name=name.replace(" ", "-"))
            streams = Streams(stack.enter_context(server), timeout_s=600.0)
            loads[name] = Load(streams, ids, long_tokens)
            closers.append(streams.aclose)
        for load in loads.values():  # A server that has just started has more to do.
            for _ in range(NUM_STREAMS):
                await load.send(STREAM_PROMPT, STREAM_TOKENS)
        for index in range(settings.rounds):
            order = list(loads)
            turn = index % len(order)
            for name in order[turn:] + order[:turn]:
                rounds[name].append(await measure(loads[name], num_long))
        for close in closers:
            await close()
    return {
        "arms": {name: _summary(found) for name, found in rounds.items()},
        "rounds": {name: [_summary([one]) for one in found] for name, found in rounds.items()},
    }


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    def pooled(metric: str) -> Any:
        return describe(value for one in rounds for value in one[metric])

    found = {metric: pooled(metric) for metric in ("idle_gaps_ms", "gaps_ms", "idle_ttft_ms", "ttft_ms")}
    solo = describe(one["solo_tokens_per_s"] for one in rounds)
    beside = describe(one["tokens_per_s"] for one in rounds)
    assert solo is not None and beside is not None
    return {**found, "solo_tokens_per_s": solo.p50, "tokens_per_s": beside.p50}


def table(result: dict[str, Any]) -> list[Row]:
    header = ["beside long prompts", "idle ITL p50", "ITL p50", "p99", "p99/idle", "idle TTFT", "TTFT p50", "max"]
    rows = [[*header, "prefill/s", "of solo"]]
    for name, one in result["arms"].items():
        idle, gaps, idle_ttft, ttft = (one[m] for m in ("idle_gaps_ms", "gaps_ms", "idle_ttft_ms", "ttft_ms"))
        tail = gaps.max if gaps.p99 is None else gaps.p99
        cells = [f"{idle.p50:.1f}", f"{gaps.p50:.1f}", f"{tail:.1f}", f"{tail / idle.p50:.2f}"]
        cells += [f"{idle_ttft.p50:.0f}", f"{ttft.p50:.0f}", f"{ttft.max:.0f}"]
        rows.append(
            [name, *cells, f"{one['tokens_per_s']:.0f}", f"{one['tokens_per_s'] / one['solo_tokens_per_s']:.2f}"]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.lanes", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long-tokens", type=int, default=6000)
    parser.add_argument("--num-long", type=int, default=2, help="long prompts of a round")
    parser.add_argument("--arm", action="append", choices=sorted(ARMS), help="only these; repeat for several")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    arms = {name: ARMS[name] for name in args.arm} if args.arm else ARMS
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(args.model.resolve(), None, args.rounds, (), "auto", Path(folder), Path(folder))
        result = uvloop.run(run(settings, arms, args.long_tokens, args.num_long))
    print(render(table(result)))
    if args.out:
        args.out.write_bytes(result_document("lanes", sys.orig_argv, {"twinpath": __version__}, result))


if __name__ == "__main__":
    main()
