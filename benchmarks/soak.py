"""100,000 requests with 10 % errors through a whole server on a scripted model: does memory grow?

    python -m benchmarks.soak [--requests 100000] [--clients 32] [--out FILE]

One request in ten goes wrong, in turn: an engine failure mid-stream, malformed JSON, a prompt beyond the window, an
unknown model, a client that hangs up after the first event. Memory (anonymous pages of each process of the server: no
library page whose share depends on what else runs) is sampled as requests complete; the slope is a least-squares line
through the second half, when caches and allocators have settled.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.servers import Server, free_port
from twinpath import __version__
from twinpath.bench import result_document

NUM_SAMPLES = 60
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
ERROR_SHARE = 10
SCRIPT = {
    "engine": {"num_pages": 512, "page_size": 16, "max_model_len": 2048},
    "scripts": [
        {"match": "please fail", "text": "half an answer and no more", "fail_at": 12, "chunks": [4]},
        {"match": "please", "text": "an answer of some length, in a few steps", "chunks": [4]},
    ],
}


def body(number: int) -> tuple[str, bytes]:
    """(what is expected, request body) of request `number`."""
    model, text, kind = "script", f"request {number}: please", "ok"
    match number % (ERROR_SHARE * 5):
        case 0:
            kind, text = "engine failure", f"request {number}: please fail"
        case 10:
            kind, text = "too long", "x" * 3000
        case 20:
            kind, model = "unknown model", "nobody"
        case 30:
            kind = "hung up"
        case 40:
            return "malformed", b'{"model": "script", "messages": [{"role": "us'
    messages = [{"role": "system", "content": f"prefix {number % 7} " * 8}, {"role": "user", "content": text}]
    return kind, json.dumps({"model": model, "messages": messages, "stream": number % 2 == 0}).encode()


class Connection:
    """One kept-alive HTTP/1.1 connection, just enough of a client to cost little beside the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, content: bytes, hang_up: bool) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        reader, writer = self._streams
        writer.write(_HEAD + str(len(content)).encode() + b"\r\n\r\n" + content)
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(headers.split(b" ", 2)[1])
        if hang_up:
            await self.close()
            return status, b""
        answer = await self._read_body(reader, headers)
        if b"connection: close" in headers:
            await self.close()
        return status, answer

    async def _read_body(self, reader: asyncio.StreamReader, headers: bytes) -> bytes:
        if b"transfer-encoding: chunked" not in headers:
            length = int(headers.split(b"content-length:")[1].split(b"\r\n")[0])
            return await reader.readexactly(length)
        parts = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
        return b"".join(parts)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError):
                await self._streams[1].wait_closed()
            self._streams = None


def outcome(kind: str, status: int, answer: bytes) -> str:
    """What the client saw, in words; a wrong ending shows as an outcome of its own."""
    if kind == "hung up":
        return kind if status == 200 else f"hung up, status {status}"
    if kind == "ok":
        ended = answer.rstrip().endswith(b"data: [DONE]") if answer.startswith(b"data:") else b'"stop"' in answer
        return "ok" if status == 200 and ended else f"WRONG: {status} {answer[-80:]!r}"
    return kind if b'"error"' in answer else f"WRONG {kind}: {status} {answer[-80:]!r}"


async def load(server: Server, num_requests: int, num_clients: int) -> tuple[Counter[str], list[dict[str, Any]]]:
    numbers = iter(range(num_requests))
    outcomes: Counter[str] = Counter()
    samples: list[dict[str, Any]] = []
    step = max(1, num_requests // NUM_SAMPLES)

    async def client(numbers: Iterator[int]) -> None:
        connection = Connection(server.port)
        for number in numbers:
            kind, content = body(number)
            status, answer = await connection.ask(content, kind == "hung up")
            outcomes[outcome(kind, status, answer)] += 1
            if outcomes.total() % step == 0:
                memory = {str(pid): anonymous_kb(pid) for pid in server.pids()}
                samples.append({"requests": outcomes.total(), "anonymous_kb": memory})
        await connection.close()

    await asyncio.gather(*(client(numbers) for _ in range(num_clients)))
    return outcomes, samples


def anonymous_kb(pid: int) -> int:
    """Memory of a process that no file backs."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


def slopes(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Bytes per request of each process, over the second half."""
    half = samples[len(samples) // 2 :]
    requests = np.array([sample["requests"] for sample in half], float)
    found = {}
    for pid in half[0]["anonymous_kb"]:
        memory = np.array([sample["anonymous_kb"].get(pid, np.nan) for sample in half])
        found[pid] = float(np.polyfit(requests, memory, 1)[0] * 2**10)
    return found


def gauges(server: Server) -> dict[str, float]:
    """Gauges that must be back at zero when nobody asks any more."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    wanted = ("num_requests_running", "num_requests_waiting", "kv_cache_usage")
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs if any(word in name for word in wanted)}


def run(num_requests: int, num_clients: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        script, log = Path(folder) / "script.json", Path(folder) / "server.log"
        script.write_text(json.dumps(SCRIPT))
        port = free_port()
        argv = [sys.executable, "-m", "twinpath", "serve", f"scripted://{script}", "--port", str(port)]
        server = Server("twinpath", [*argv, "--log-level", "warning"], port, "/health/ready", log)
        try:
            begin_s = time.perf_counter()
            outcomes, samples = asyncio.run(load(server, num_requests, num_clients))
            elapsed_s = time.perf_counter() - begin_s
            time.sleep(1.0)  # Two heartbeats: the engine's own gauges are that old.
            left = gauges(server)
            num_processes = len(server.pids())
        finally:
            server.stop()
    return {
        "requests": num_requests,
        "clients": num_clients,
        "elapsed_s": elapsed_s,
        "outcomes": dict(outcomes),
        "slope_bytes_per_request": slopes(samples),
        "gauges_after": left,
        "num_processes": num_processes,
        "samples": samples,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = run(arguments.requests, arguments.clients)
    if arguments.out is not None:
        numbers = ["--requests", str(arguments.requests), "--clients", str(arguments.clients)]
        command = ["python", "-m", "benchmarks.soak", *numbers]
        arguments.out.write_bytes(result_document("soak", command, {"twinpath": __version__}, result))
    for key in ("elapsed_s", "outcomes", "slope_bytes_per_request", "gauges_after", "num_processes"):
        print(key, result[key])
    wrong = [name for name in result["outcomes"] if name.startswith("WRONG")]
    return 1 if wrong or any(result["gauges_after"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
