"""Memory after one long request, and the time from start to ready."""

from __future__ import annotations

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
NUM_LATER_REQUESTS = 9


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


async def run_startup(settings: Settings) -> dict[str, Any]:
    """Start to first 200 from the readiness probe, and to the first token of a chat; model file already cached. And
    what the first request waits for its first token, against those that come after it."""
    ready, first, ratios = [], [], []
    for index in range(settings.rounds):
        with twinpath_server(settings.model, settings.log_dir) as server:
            stream = Streams(server)
            ttft_ms = [
                (await stream.complete(fresh_text(100 * index + turn), 1)).ttft_ms or 0.0
                for turn in range(1 + NUM_LATER_REQUESTS)
            ]
            await stream.aclose()
            ready.append(server.ready_s)
            first.append(server.ready_s + ttft_ms[0] / 1e3)
            ratios.append(ttft_ms[0] / median(ttft_ms[1:]))
    return {"ready_s": describe(ready), "first_token_s": describe(first), "first_to_later_ttft": describe(ratios)}


def startup_table(result: dict[str, Any]) -> list[Row]:
    rows = [["start-up", "p50", "min-max", "n"]]
    for name in ("ready_s", "first_token_s", "first_to_later_ttft"):
        found = result[name]
        rows.append([name, f"{found.p50:.2f}", f"{found.min:.2f}-{found.max:.2f}", str(found.n)])
    return rows
