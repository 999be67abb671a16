"""What very large requests do to everybody else's: `python -m benchmarks.stalls MODEL.gguf`.

While each is worked on, another client asks for /health all the time. Shown: the longest such answer beside it and with
nothing beside it, and what the server's own tracer (`--trace-stalls-ms 5`) counted, with its last log lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.servers import twinpath_server
from twinpath import __version__
from twinpath.bench import result_document

STALL = re.compile(r'^twinpath:loop_stalls\{loop="http",.*\} (\S+)$', re.MULTILINE)
WORDS = "The quick brown fox jumps over the lazy dog near the river bank, and 42 others watch it go. "


def cases(mebibytes: int) -> dict[str, tuple[str, bytes]]:
    """Name -> path and body."""
    size = mebibytes * 2**20
    ids, text = b"1234," * (size // 5), WORDS * (size // len(WORDS))
    blanks = " " * size
    chat = "/v1/chat/completions"

    def message(content: str) -> bytes:
        return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 1}).encode()

    return {
        "nothing beside it": ("/health", b""),
        "100K tokens of text": (chat, message(WORDS * 4500)),
        f"{mebibytes} MiB of token ids": ("/v1/completions", b'{"max_tokens": 1, "prompt": [' + ids + b"1]}"),
        f"{mebibytes} MiB in one message": (chat, message(text)),
        f"{mebibytes} MiB of blanks in one message": (chat, message(blanks)),
        "7K tokens, served": (chat, message(WORDS * 300)),
    }


async def measure(url: str, path: str, body: bytes) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=120.0, trust_env=False) as client:
        before = STALL.search((await client.get("/metrics")).text)
        headers = {"content-type": "application/json"}
        asking = asyncio.create_task(client.post(path, content=body, headers=headers) if body else asyncio.sleep(1.0))
        waits_ms, began = [], time.perf_counter()
        while not asking.done():
            at = time.perf_counter()
            await client.get("/health")
            waits_ms.append((time.perf_counter() - at) * 1e3)
            await asyncio.sleep(0.002)
        took_s, answer = time.perf_counter() - began, await asking
        after = STALL.search((await client.get("/metrics")).text)
    assert before and after
    return {
        "status": answer.status_code if isinstance(answer, httpx.Response) else 200,
        "took_s": took_s,
        "num_health": len(waits_ms),
        "worst_health_ms": max(waits_ms),
        "num_stalls": float(after[1]) - float(before[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.stalls", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--mebibytes", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        twinpath_server(args.model.resolve(), Path(folder), "--trace-stalls-ms", "5") as server,
    ):
        for name, (path, body) in cases(args.mebibytes).items():
            found = results[name] = asyncio.run(measure(server.url, path, body))
            print(
                f"{name:32} status {found['status']}  {found['took_s'] * 1e3:6.0f} ms"
                f"  /health at worst {found['worst_health_ms']:6.1f} ms  stalls {found['num_stalls']:.0f}",
                flush=True,
            )
        log = (Path(folder) / "twinpath.log").read_text(errors="replace")
    stalls = [line.partition("twinpath.stalls: ")[2] for line in log.splitlines() if "twinpath.stalls" in line]
    print("\n".join(stalls[-12:]))
    if args.out:
        document = {"cases": results, "stalls": stalls}
        args.out.write_bytes(result_document("stalls", sys.orig_argv, {"twinpath": __version__}, document))


if __name__ == "__main__":
    main()
