"""Many requests, one in ten of them wrong: the server's memory, descriptors and pages are what they were."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from e2e.served import serving, write_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Warm-up, then what is measured; tests/api/test_leaks.py counts objects exactly.
NUM_WARM, NUM_REQUESTS = 1_500, 4_500
NUM_WORKERS = 16
#: An exchange with its text is about 4 KB; allocators keep some megabytes as they like.
MAX_BYTES_PER_REQUEST = 3_000


def body(number: int) -> bytes:
    """Nine good ones, streamed in turn, and then a bad one of changing kind."""
    if number % 10 == 9:
        return (
            b"not json",
            b'{"messages": [], "stream": true}',
            b'{"messages": [{"role": "user", "content": "x"}], "temperature": 99}',
            b'{"messages": [{"role": "user", "content": "fail"}], "stream": true}',
        )[number // 10 % 4]
    streamed = b"true" if number % 2 else b"false"
    return b'{"messages": [{"role": "user", "content": "%d"}], "stream": %s}' % (number, streamed)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes) -> int:
    """One request on a kept connection, by hand: an HTTP library would take ten times as long. Returns the status."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content)
    writer.write(head + content)
    answer_head = await reader.readuntil(b"\r\n\r\n")
    if b"chunked" in answer_head:
        await reader.readuntil(b"\r\n0\r\n\r\n")
    else:
        await reader.readexactly(int(answer_head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return int(answer_head.split(b" ", 2)[1])


async def drive(url: str, first: int, count: int) -> None:
    numbers = iter(range(first, first + count))
    parts = urlsplit(url)

    async def work() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for number in numbers:
            status = await ask(reader, writer, body(number))
            assert status in ((400, 500) if number % 10 == 9 else (200,))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(work() for _ in range(NUM_WORKERS)))


def memory_of(processes: list[psutil.Process]) -> int:
    return sum(process.memory_full_info().uss for process in processes)


def held(url: str) -> list[float]:
    """Requests running and waiting, and the share of KV pages in use, as /metrics tells."""
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return [float(line.rsplit(" ", 1)[1]) for name in names for line in lines if line.startswith(name + "{")]


async def test_memory_does_not_grow_with_requests(tmp_path: Path) -> None:
    script = write_script(tmp_path, scripts=[{"match": "fail", "fail_at": 0}], default={"text": "ok"})
    with serving(script, "--log-level", "warning") as served:
        url, family = served.url, served.processes()
        num_fds = family[0].num_fds()
        await drive(url, 0, NUM_WARM)
        before = memory_of(family)
        await drive(url, NUM_WARM, NUM_REQUESTS)
        grown = (memory_of(family) - before) / NUM_REQUESTS
        assert grown < MAX_BYTES_PER_REQUEST, f"{grown:.0f} bytes per request"
        async with asyncio.timeout(10):
            while family[0].num_fds() > num_fds:  # The server learns of closed connections a moment later.
                await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            while held(url) != [0.0, 0.0, 0.0]:  # The engine's gauges travel with its heartbeat, twice a second.
                await asyncio.sleep(0.05)
