"""SSE over HTTP/1.1 against gRPC: first token and cost per token. `python -m benchmarks.transports`.

A scripted engine says one token per millisecond to each stream, so that what differs is the transport. Measured with
and without 10 ms of round trip (`relay.py`), on kept connections and on new ones; CPU time is that of the gateway's
process. The server speaks HTTP/2 for gRPC only: SSE over HTTP/2 goes through nginx, where that and `h2` are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import grpc
import uvloop

from benchmarks.http2 import Http2Client, http2_before, is_possible
from benchmarks.servers import Server, free_port
from benchmarks.settings import ROOT
from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import describe, result_document
from twinpath.rpc import wire

PROMPT = "a prompt of the usual kind, " * 20
NUM_TOKENS, NUM_STREAMS = 400, 8
DELAYS_MS = (0.0, 5.0)
#: One-way delays stand for round trips of twice as much.
FIRST_TOKEN_ROUNDS, LOAD_ROUNDS = 30, 3
_CONTENT = re.compile(rb'"text":"(?!")')

#: Yields the number of tokens of each message as it comes; closes what it opened.
Stream = Callable[[int], AsyncIterator[int]]


def stream_body(num_tokens: int) -> bytes:
    return json.dumps({"prompt": PROMPT, "max_tokens": num_tokens, "stream": True}).encode()


def num_tokens_in(piece: bytes) -> int:
    return len(_CONTENT.findall(piece))


class SseClient:
    """/v1/completions, read from the socket: what parsing a real client adds is not the transport's."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def stream(self, num_tokens: int) -> AsyncIterator[int]:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        body = stream_body(num_tokens)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        await reader.readuntil(b"\r\n\r\n")
        while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
            chunk = await reader.readexactly(size + 2)
            if count := num_tokens_in(chunk):
                yield count
        await reader.readexactly(2)
        self._idle.append((reader, writer))

    async def aclose(self) -> None:
        for _, writer in self._idle:
            writer.close()


class Client(Protocol):
    """One transport's client."""

    def stream(self, num_tokens: int) -> AsyncIterator[int]: ...
    async def aclose(self) -> None: ...


class RpcClient:
    """Generate, on one channel. `wait_ms`: how long later tokens wait for company."""

    def __init__(self, port: int, wait_ms: int) -> None:
        # Else channels of one process share a connection, and a new one would not be new.
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._wait_ms = wait_ms
        self._generate = self._channel.unary_stream(
            f"/{wire.SERVICE}/Generate", wire.GenerateRequest.SerializeToString, wire.GenerateResponse.FromString
        )

    async def stream(self, num_tokens: int) -> AsyncIterator[int]:
        request = wire.GenerateRequest(
            text=PROMPT, sampling={"max_tokens": num_tokens}, packing={"wait_ms": self._wait_ms}
        )
        async for response in self._generate(request):
            if count := len(response.token_ids):
                yield count

    async def aclose(self) -> None:
        await self._channel.close()


def make_clients(http_port: int, rpc_port: int, http2_port: int | None) -> dict[str, Callable[[], Client]]:
    http2: dict[str, Callable[[], Client]] = {}
    if http2_port is not None:
        http2["SSE, HTTP/2 by nginx"] = lambda: Http2Client(http2_port, stream_body, num_tokens_in)
    return {
        "SSE, HTTP/1.1": lambda: SseClient(http_port),
        **http2,
        "gRPC": lambda: RpcClient(rpc_port, 0),
        "gRPC, packed 10 ms": lambda: RpcClient(rpc_port, 10),
    }


async def first_token_ms(client: Client) -> float:
    """From the request to its first token; the rest is read as well."""
    begin, first = time.perf_counter(), 0.0
    async for _ in client.stream(4):
        first = first or time.perf_counter()
    return (first - begin) * 1e3


async def load(client: Client, pid: int) -> dict[str, float]:
    """Several streams at once: CPU of the gateway and messages per token, and when the tokens came."""
    gaps: list[float] = []
    num_messages = num_tokens = 0

    async def one() -> None:
        nonlocal num_messages, num_tokens
        last = 0.0
        async for count in client.stream(NUM_TOKENS):
            now = time.perf_counter()
            if last:
                gaps.append((now - last) * 1e3)
            last = now
            num_messages, num_tokens = num_messages + 1, num_tokens + count

    await one()
    gaps.clear()
    num_messages = num_tokens = 0
    cpu_s = cpu_time_s(pid)
    await asyncio.gather(*(one() for _ in range(NUM_STREAMS)))
    return {
        "cpu_us_per_token": (cpu_time_s(pid) - cpu_s) * 1e6 / num_tokens,
        "tokens_per_message": num_tokens / num_messages,
        "gap_p50_ms": statistics.median(gaps),
        "gap_p99_ms": statistics.quantiles(gaps, n=100)[98],
    }


def cpu_time_s(pid: int) -> float:
    """User and system time of one process, its children left out."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def relayed(port: int, delay_ms: float) -> Iterator[int]:
    """A port that is `delay_ms` away in each direction."""
    if not delay_ms:
        yield port
        return
    relay = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.relay", str(port), str(delay_ms)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert relay.stdout is not None
        yield int(relay.stdout.readline())
    finally:
        relay.kill()
        relay.wait()


async def measure(
    http_port: int, rpc_port: int, http2_port: int | None, pid: int, *, with_load: bool
) -> dict[str, Any]:
    """All transports in turn, round by round, so that what else the machine does meets them alike."""
    makers = make_clients(http_port, rpc_port, http2_port)
    kept = {name: make() for name, make in makers.items()}
    warm: dict[str, list[float]] = {name: [] for name in makers}
    fresh: dict[str, list[float]] = {name: [] for name in makers}
    loads: dict[str, list[dict[str, float]]] = {name: [] for name in makers}
    for index in range(FIRST_TOKEN_ROUNDS + 1):
        for name, make in makers.items():
            warm[name].append(await first_token_ms(kept[name]))
            if index % 3 == 0:
                client = make()
                fresh[name].append(await first_token_ms(client))
                await client.aclose()
    for _ in range(LOAD_ROUNDS if with_load else 0):
        for name in makers:
            loads[name].append(await load(kept[name], pid))
    for client in kept.values():
        await client.aclose()
    return {
        name: {
            "first_token_ms": describe(warm[name][1:]),
            "first_token_new_connection_ms": describe(fresh[name][1:]),
            **{key: describe(one[key] for one in loads[name]) for key in (loads[name][0] if loads[name] else ())},
        }
        for name in makers
    }


async def run(folder: Path) -> dict[str, Any]:
    script = folder / "script.json"
    script.write_text(
        json.dumps({"engine": {"step_ms": 1.0, "max_slots": 64}, "default": {"text": "x" * 2000}}), encoding="utf-8"
    )
    port, rpc_port = free_port(), free_port()
    argv = [sys.executable, "-m", "twinpath", "serve", f"scripted://{script}"]
    argv += ["--port", str(port), "--grpc-port", str(rpc_port)]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server("twinpath", argv, port, "/health/ready", folder / "server.log"))
        http2_port = stack.enter_context(http2_before(port, folder)) if is_possible() else None
        result = {}
        for delay_ms in DELAYS_MS:
            with contextlib.ExitStack() as away:
                http_at, rpc_at = (away.enter_context(relayed(at, delay_ms)) for at in (port, rpc_port))
                http2_at = None if http2_port is None else away.enter_context(relayed(http2_port, delay_ms))
                name = f"{2 * delay_ms:g} ms round trip"
                result[name] = await measure(http_at, rpc_at, http2_at, server.process.pid, with_load=not delay_ms)
        return result


def table(result: dict[str, Any]) -> list[Row]:
    rows = [
        ["", "first token", "on a new connection", "CPU per token", "tokens per message", "gap p50", "gap p99"],
    ]
    for distance, transports in result.items():
        for name, values in transports.items():
            cells = [f"{values[key].p50:.2f} ms" for key in ("first_token_ms", "first_token_new_connection_ms")]
            if "cpu_us_per_token" in values:
                cells.append(f"{values['cpu_us_per_token'].p50:.0f} us")
                cells.append(f"{values['tokens_per_message'].p50:.1f}")
                cells += [f"{values[key].p50:.2f} ms" for key in ("gap_p50_ms", "gap_p99_ms")]
            rows.append([f"{name}, {distance}", *cells])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.transports", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder for the JSON file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="twinpath-bench-") as folder:
        result = uvloop.run(run(Path(folder)))
    versions = {"twinpath": __version__, "grpcio": grpc.__version__}
    facts = {"streams": NUM_STREAMS, "tokens": NUM_TOKENS, "result": result}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{datetime.now(UTC):%Y-%m-%d}-transports.json"
    path.write_bytes(result_document("transports", ["python", "-m", "benchmarks.transports"], versions, facts))
    print(render(table(result)))


if __name__ == "__main__":
    main()
