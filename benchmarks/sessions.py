"""What sessions and pinned templates save, over HTTP: `python -m benchmarks.sessions MODEL.gguf`.

turns: first token of 64 new tokens behind 0, 200, 2,000 and 6,000 tokens of history; beside the latter the time that
    attention needs for the history, from steps of the same engine in this process.
pause: a session's next turn after 20 s in which others fill the KV pool again and again; and after its time to live.
opening: first turns that open a session, and the same prompts without one.
templates: first tokens behind a pinned beginning and behind one that is not, alone and while others fill the pool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.engine_steps import StepTimer, matrix_gflops
from benchmarks.requests import Streams, fresh_ids
from benchmarks.servers import twinpath_server
from benchmarks.settings import Settings, prompt_ids
from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import CpuMeter, RequestRecord, describe, result_document

NUM_NEW = 64
HISTORIES = (200, 2000, 6000)
PAUSE_S = 20.0
#: Small enough that others fill it in the pause: 4,096 tokens of the default model.
SMALL_POOL = ("--kv-cache-mb", "90", "--max-model-len", "2048")
PRESSURE_TOKENS = 600
NUM_TEMPLATE = 1500


class Talk:
    """Prompts that start differently, over all pieces."""

    def __init__(self, streams: Streams, ids: list[int], first: int = 0) -> None:
        self._streams = streams
        self._ids = ids * 20
        self._index = first

    def prompt(self, num_tokens: int) -> list[int]:
        self._index += 1
        return fresh_ids(self._ids, self._index, num_tokens)

    async def ask(self, prompt: list[int], session: str | None = None) -> RequestRecord:
        fields = {} if session is None else {"user": session}
        return await self._streams.complete(prompt, 2, **fields)


def gauge(url: str, name: str, label: str = "") -> float:
    """A sample of /metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    [value] = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(name + "{") and label in line]
    return float(value)


async def wait_for(condition: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {within_s} s: the server's gauges say otherwise")
        await asyncio.sleep(0.1)


async def turns(settings: Settings) -> dict[str, Any]:
    """Rounds of all histories in turn; the server and the engine of this process take turns too."""
    ids = prompt_ids(settings.model)
    timer = StepTimer(settings.model, max(HISTORIES) + NUM_NEW)
    ttft: dict[int, list[float]] = {c: [] for c in (0, *HISTORIES)}
    attention: dict[int, list[float]] = {c: [] for c in HISTORIES}
    cached: dict[int, list[int]] = {c: [] for c in HISTORIES}
    with twinpath_server(settings.model, settings.log_dir) as server:
        meter, streams = CpuMeter([server.process.pid]), Streams(server)
        talk = Talk(streams, ids)
        histories = {c: talk.prompt(c) for c in HISTORIES}
        for c, history in histories.items():
            await talk.ask(history, f"history {c}")
        for _ in range(settings.rounds):
            record = await talk.ask(talk.prompt(NUM_NEW))
            ttft[0].append(record.ttft_ms or 0.0)
            for c, history in histories.items():
                record = await talk.ask(history + talk.prompt(NUM_NEW), f"history {c}")
                ttft[c].append(record.ttft_ms or 0.0)
                cached[c].append(record.cached_tokens)
                attention[c].append(timer.attention_ms(NUM_NEW, c))
        await streams.aclose()
        others = meter.others_percent()
    return {
        "ttft_ms": {str(c): describe(values) for c, values in ttft.items()},
        "attention_ms": {str(c): describe(values) for c, values in attention.items()},
        "cached_tokens_min": {str(c): min(values) for c, values in cached.items()},
        "over_sum": {
            str(c): statistics.median(ttft[c]) / (statistics.median(ttft[0]) + statistics.median(attention[c]))
            for c in HISTORIES
        },
        "attention_gflops": timer.attention_gflops(NUM_NEW, max(HISTORIES)),
        "matrix_gflops": matrix_gflops(),
        "others_percent": others,
    }


async def pause(settings: Settings) -> dict[str, Any]:
    """A tool pause under pressure, then the end of the session's time."""
    ids = prompt_ids(settings.model)
    flags = (*SMALL_POOL, "--session-ttl", "22")
    with twinpath_server(settings.model, settings.log_dir, *flags, name="small-pool") as server:
        streams = Streams(server)
        talk = Talk(streams, ids)
        history = talk.prompt(1000)
        first = await talk.ask(history, "agent")
        begin_s, num_others, num_tokens = time.monotonic(), 0, 0
        while time.monotonic() - begin_s < PAUSE_S:
            await asyncio.gather(talk.ask(talk.prompt(PRESSURE_TOKENS)), talk.ask(talk.prompt(PRESSURE_TOKENS)))
            num_others, num_tokens = num_others + 2, num_tokens + 2 * PRESSURE_TOKENS
        kinds = ('"free"', '"prefix"', '"session"', '"running"')
        pool_tokens = 16 * sum(gauge(server.url, "twinpath:kv_pages", kind) for kind in kinds)
        second = await talk.ask(history + talk.prompt(NUM_NEW), "agent")
        await wait_for(lambda: gauge(server.url, "twinpath:sessions") == 0, 40.0)
        kept = gauge(server.url, "twinpath:kv_pages", '"session"')
        third = await talk.ask(history + talk.prompt(NUM_NEW), "agent")
        await streams.aclose()
    return {
        "history_tokens": len(history),
        "pause_s": PAUSE_S,
        "pool_tokens": pool_tokens,
        "other_requests": num_others,
        "other_tokens": num_tokens,
        "cached_tokens": {
            "first turn": first.cached_tokens,
            "after the pause": second.cached_tokens,
            "after its time": third.cached_tokens,
        },
        "ttft_ms": {"first turn": first.ttft_ms, "after the pause": second.ttft_ms, "after its time": third.ttft_ms},
        "session_pages_after_its_time": kept,
    }


async def opening(settings: Settings) -> dict[str, Any]:
    """Pairs: a first turn with a session of its own, and without."""
    ids = prompt_ids(settings.model)
    with_session, without = [], []
    with twinpath_server(settings.model, settings.log_dir) as server:
        streams = Streams(server)
        talk = Talk(streams, ids)
        for index in range(10 * settings.rounds):
            pair = [(without, None), (with_session, f"session {index}")]
            for values, session in pair if index % 2 else reversed(pair):
                values.append((await talk.ask(talk.prompt(NUM_NEW), session)).ttft_ms or 0.0)
        await streams.aclose()
    differences = [a - b for a, b in zip(with_session, without, strict=True)]
    return {
        "ttft_ms": {"session": describe(with_session), "none": describe(without)},
        "opening_ms": describe(differences),
        "opening_ms_median": statistics.median(differences),
    }


async def templates(settings: Settings) -> dict[str, Any]:
    """Hits and misses in turn, first alone, then while another client fills the pool."""
    system = {"role": "system", "content": prompt_text(NUM_TEMPLATE)}
    path = settings.log_dir / "template.json"
    path.write_text(json.dumps({"messages": [system]}))
    flags = (*SMALL_POOL, "--pin-template", str(path), "--lanes", "on")
    found: dict[str, Any] = {}
    with twinpath_server(settings.model, settings.log_dir, *flags, name="templates") as server:
        streams = Streams(server)
        talk = Talk(streams, prompt_ids(settings.model))
        for name in ("alone", "beside a client that fills the pool"):
            stopped = asyncio.Event()
            loader = asyncio.create_task(fill(talk, stopped)) if name != "alone" else None
            found[name] = await attach(streams, system, 10 * settings.rounds)
            stopped.set()
            if loader is not None:
                await loader
        found["pinned_pages"] = gauge(server.url, "twinpath:kv_pages", '"pinned"')
        await streams.aclose()
    return found


async def attach(streams: Streams, system: dict[str, str], num_pairs: int) -> dict[str, Any]:
    """First tokens behind the pinned beginning, and (one in twenty) behind a fresh one of the same length."""
    hits, misses, cached = [], [], []
    for index in range(num_pairs):
        record = await streams.talk([system, {"role": "user", "content": f"{index}?"}], 2)
        hits.append(record.ttft_ms or 0.0)
        cached.append(record.cached_tokens)
        if index % 20 == 0:
            other = {"role": "system", "content": f"{index} {time.monotonic_ns()} {system['content']}"}
            misses.append((await streams.talk([other, {"role": "user", "content": f"{index}?"}], 2)).ttft_ms or 0.0)
    return {
        "hit_ms": {**msgspec.to_builtins(describe(hits)), "sd": statistics.stdev(hits)},
        "miss_ms": describe(misses),
        "cached_tokens_min": min(cached),
    }


async def fill(talk: Talk, stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        await talk.ask(talk.prompt(PRESSURE_TOKENS))


def prompt_text(num_tokens: int) -> str:
    from benchmarks.settings import PROMPT

    return (PROMPT * 20)[: 4 * num_tokens]


PIECES: dict[str, Callable[[Settings], Awaitable[dict[str, Any]]]] = {
    "turns": turns,
    "pause": pause,
    "opening": opening,
    "templates": templates,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sessions", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("pieces", nargs="*", choices=[*PIECES, []], default=list(PIECES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(args.model.resolve(), None, args.rounds, (), "auto", Path(folder), Path(folder))
        for name in args.pieces:
            results[name] = uvloop.run(PIECES[name](settings))
            print(render([[name, "", ""], *rows(results[name])]), flush=True)
    if args.out:
        args.out.write_bytes(result_document("sessions", sys.orig_argv, {"twinpath": __version__}, results))


def rows(found: Any, prefix: str = "") -> list[Row]:
    """Every value with its path; of a distribution what a reader wants first."""
    if isinstance(found, dict) and "p50" not in found:
        return [row for key, value in found.items() for row in rows(value, f"{prefix}{key}: ")]
    if not isinstance(found, dict) and not hasattr(found, "p50"):
        return [[prefix[:-2], f"{found:.2f}" if isinstance(found, float) else str(found), ""]]
    one = found if isinstance(found, dict) else msgspec.to_builtins(found)
    spread = f"p99 {one['p99']:.2f}" if one.get("p99") is not None else f"min {one['min']:.2f}, max {one['max']:.2f}"
    sd = f", sd {one['sd']:.2f}" if "sd" in one else ""
    return [[prefix[:-2], f"{one['p50']:.2f}", spread + sd]]


if __name__ == "__main__":
    main()
