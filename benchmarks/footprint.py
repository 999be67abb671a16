"""Memory after one long request, and the time from start to ready."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.requests import Streams, fresh_text
from benchmarks.servers import Server, llama_server, twinpath_server
from benchmarks.settings import PROMPT, Settings
from benchmarks.table import Row
from twinpath.bench import describe, pss_mb

#: About 970 tokens of text and 64 of answer: one request of 1K tokens.
NUM_TOKENS = 64
#: Requests after the first, one after another.
NUM_LATER_REQUESTS = 5
#: The first request of a launch comes so long after ready at most.
LATEST_S = 0.5


def _loaded(pids: list[int], name: str) -> bool:
    """Whether any process has a file of that library mapped."""
    maps = (Path(f"/proc/{pid}/maps") for pid in pids)
    return any(f"/{name}/" in path.read_text(errors="replace") for path in maps if path.exists())


async def _memory(server: Server) -> dict[str, Any]:
    pids = server.pids()
    before = pss_mb(pids)
    stream = Streams(server)
    record = await stream.complete(PROMPT, NUM_TOKENS)
    pids = server.pids()
    after, parts = pss_mb(pids), [round(pss_mb([pid]), 1) for pid in pids]
    await stream.talk(
        [{"role": "user", "content": "A box as JSON."}], NUM_TOKENS, response_format={"type": "json_object"}
    )
    await stream.aclose()
    return {
        "name": server.name,
        "pss_ready_mb": before,
        "pss_mb": after,
        "pss_per_process_mb": parts,
        "pss_grammar_mb": pss_mb(pids),
        "torch_loaded": _loaded(pids, "torch"),
        "prompt_tokens": record.prompt_tokens,
    }


async def run(settings: Settings) -> dict[str, Any]:
    """PSS summed over the process tree: twinpath with its defaults, and llama-cpp-python's server for scale."""
    with twinpath_server(settings.model, settings.log_dir) as server:
        rows = [await _memory(server)]
    if settings.peers is not None:
        threads = max(settings.threads)
        with llama_server(settings.peers, settings.model, settings.log_dir, threads=threads, flash=False) as server:
            rows.append(await _memory(server))
    return {"rows": rows}


def table(result: dict[str, Any]) -> list[Row]:
    rows = [["memory", "PSS MB ready", "after 1K tokens", "per process", "after a JSON answer", "torch loaded"]]
    for row in result["rows"]:
        parts = " + ".join(str(part) for part in row["pss_per_process_mb"])
        sums = [f"{row[name]:.0f}" for name in ("pss_ready_mb", "pss_mb", "pss_grammar_mb")]
        rows.append([row["name"], *sums[:2], parts, sums[2], str(row["torch_loaded"])])
    return rows


def _strict(index: int) -> dict[str, Any]:
    """A format that no request before had: its grammar is compiled."""
    name = f"field_{index}"
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"}},
        "required": [name],
        "additionalProperties": False,
    }
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}}


async def _first_to_later(server: Server, index: int, *, strict: bool) -> list[float]:
    """First-token times in ms, in the order of the requests."""
    stream = Streams(server)
    times_ms = []
    for number in range(index, index + 1 + NUM_LATER_REQUESTS):
        fields = _strict(number) if strict else {}
        times_ms.append((await stream.complete(fresh_text(number), 1, **fields)).ttft_ms or 0.0)
    await stream.aclose()
    return times_ms


async def run_startup(settings: Settings) -> dict[str, Any]:
    """Start to first 200 from the readiness probe, and to the first token; model file already cached. And what the
    first request waits for its first token against those that come after it: one that comes at once or up to
    `LATEST_S` after ready, and, in a launch of its own, one with a strict schema."""
    names = ("ready_s", "first_token_s", "first_to_later", "strict_to_later", "worst_later_to_later")
    found: dict[str, list[float]] = {name: [] for name in names}
    for index in range(settings.rounds):
        for strict in (False, True):
            with twinpath_server(settings.model, settings.log_dir) as server:
                await asyncio.sleep(LATEST_S * index / settings.rounds)
                first_ms, *later_ms = await _first_to_later(server, 100 * index, strict=strict)
            found["ready_s"].append(server.ready_s)
            found["strict_to_later" if strict else "first_to_later"].append(first_ms / median(later_ms))
            found["worst_later_to_later"].append(max(later_ms) / median(later_ms))  # The machine's own unrest.
            if not strict:
                found["first_token_s"].append(server.ready_s + first_ms / 1e3)
    return {name: describe(values) for name, values in found.items()} | {"values": found}


def startup_table(result: dict[str, Any]) -> list[Row]:
    rows = [["start-up", "p50", "min-max", "n"]]
    for name in result["values"]:
        found = result[name]
        rows.append([name, f"{found.p50:.2f}", f"{found.min:.2f}-{found.max:.2f}", str(found.n)])
    return rows
