"""10,000 idle keep-alive connections and 100 active ones, over a server in its own process."""

from __future__ import annotations

import json
import resource
import selectors
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api.streams import parse
from e2e.served import Served, serving, write_script

pytestmark = pytest.mark.slow

NUM_IDLE, NUM_ACTIVE = 10_000, 100
MAX_CONNECTIONS = NUM_IDLE + NUM_ACTIVE
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MAX_CONNECTIONS + 512
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"needs {needed} open files, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=20)


def read_health(connection: socket.socket) -> None:
    """The whole answer, so that nothing is left to read."""
    answer = b""
    while b'{"status":"ok"}' not in answer:
        part = connection.recv(4096)
        assert part, "closed"
        answer += part


def ask(connection: socket.socket) -> None:
    """A request on a kept connection."""
    connection.sendall(HEALTH)
    read_health(connection)


def stream(connection: socket.socket) -> str:
    """Text of one streamed chat on a connection that ends with it."""
    body = json.dumps({"messages": [{"role": "user", "content": "go"}], "stream": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    data = b""
    while part := connection.recv(65536):
        data += part
    answer_head, _, chunks = data.partition(b"\r\n\r\n")
    assert answer_head.startswith(b"HTTP/1.1 200"), answer_head
    return parse(unchunked(chunks).decode()).text


def unchunked(data: bytes) -> bytes:
    body = b""
    while True:
        size, _, rest = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return body
        body += rest[: int(size, 16)]
        data = rest[int(size, 16) + 2 :]


def open_idle(stack: ExitStack, address: tuple[str, int]) -> list[socket.socket]:
    """Connections that each asked once, many at a time."""
    idle: list[socket.socket] = []
    for _ in range(NUM_IDLE // 100):
        batch = [stack.enter_context(connect(address)) for _ in range(100)]
        for connection in batch:
            connection.sendall(HEALTH)
        for connection in batch:
            read_health(connection)
        idle += batch
    return idle


def closed_by_server(connections: list[socket.socket]) -> int:
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        return len(selector.select(0))


@pytest.mark.usefixtures("descriptors")
def test_10000_idle_and_100_active_connections(tmp_path: Path) -> None:
    text = "0123456789" * 10
    script = write_script(tmp_path, engine={"num_pages": 2048}, default={"text": text})
    with serving(script, "--http-max-connections", str(MAX_CONNECTIONS), "--max-num-seqs", "64") as served:
        parts = urlsplit(served.url)
        assert parts.hostname is not None and parts.port is not None
        address = (parts.hostname, parts.port)
        with ExitStack() as stack:
            idle = open_idle(stack, address)
            active = [stack.enter_context(connect(address)) for _ in range(NUM_ACTIVE)]
            with ThreadPoolExecutor(NUM_ACTIVE) as threads:
                assert list(threads.map(stream, active)) == [text] * NUM_ACTIVE
            assert closed_by_server(idle) == 0
            for connection in idle[::100]:
                ask(connection)
            extra = [stack.enter_context(connect(address)) for _ in range(NUM_ACTIVE + 1)]
            assert extra[-1].recv(4096).startswith(b"HTTP/1.1 503")
        check_all_given_back(served, address)


def check_all_given_back(served: Served, address: tuple[str, int]) -> None:
    with connect(address) as connection:
        ask(connection)
    process = served.processes()[0]
    assert process.num_fds() < 512
