"""Whether speed bought a wrong answer: the README's question, to every server, with no sampling field and greedily."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks.requests import Streams
from benchmarks.servers import llama_server, twinpath_server
from benchmarks.settings import Settings
from benchmarks.table import Row

QUESTION = "What is the capital of France?"


async def run(settings: Settings) -> dict[str, Any]:
    rows = []
    with ExitStack() as stack:
        servers = [stack.enter_context(twinpath_server(settings.model, settings.log_dir))]
        if settings.peers is not None:
            threads = max(settings.threads)
            server = llama_server(settings.peers, settings.model, settings.log_dir, threads=threads, flash=False)
            servers.append(stack.enter_context(server))
        for server in servers:
            stream = Streams(server)
            record = await stream.chat(QUESTION, 48, temperature=0)
            await stream.aclose()
            rows.append({"name": server.name, "answer": record.text, "says_paris": "Paris" in record.text})
    return {"question": QUESTION, "rows": rows}


def table(result: dict[str, Any]) -> list[Row]:
    rows = [[result["question"], "Paris", "answer"]]
    return rows + [
        [row["name"], str(row["says_paris"]), " ".join(row["answer"].split())[:80]] for row in result["rows"]
    ]
