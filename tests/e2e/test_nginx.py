"""deploy/nginx/twinpath.conf in a real nginx before a live server: reuse without races, streams without buffering."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from api.live_server import LiveServer, Setup, live_server
from api.streams import parse
from twinpath.config import HttpConfig
from twinpath.engine.scripted import Script

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
SAMPLE = Path(__file__).parents[2] / "deploy" / "nginx" / "twinpath.conf"
CHAT = "/v1/chat/completions"

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def nginx_before(server: LiveServer, home: Path, changes: dict[str, str] | None = None) -> Iterator[httpx.Client]:
    """nginx with the sample, listening elsewhere; a client that talks to it."""
    port = free_port()
    sample = SAMPLE.read_text()
    ports = {"listen 8080;": f"listen 127.0.0.1:{port};", "server 127.0.0.1:8000;": f"server 127.0.0.1:{server.port};"}
    for old, new in {**ports, **(changes or {})}.items():
        assert old in sample, old
        sample = sample.replace(old, new)
    (home / "twinpath.conf").write_text(sample)
    temporary = "".join(
        f"{name}_temp_path {home}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (home / "nginx.conf").write_text(
        ("user root;\n" if os.geteuid() == 0 else "")
        + f"daemon off;\nworker_processes 1;\npid {home}/nginx.pid;\nerror_log {home}/error.log warn;\n"
        + "events { worker_connections 512; }\n"
        + f"http {{\naccess_log off;\n{temporary}include {home}/twinpath.conf;\n}}\n"
    )
    assert NGINX is not None
    with (home / "stderr").open("wb") as stderr:
        process = subprocess.Popen([NGINX, "-p", str(home), "-c", str(home / "nginx.conf")], stderr=stderr)
    try:
        server.wait_until(lambda: process.poll() is not None or is_listening(port), "nginx listens")
        assert process.poll() is None, (home / "stderr").read_text()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False, verify=False) as client:
            yield client
        assert (home / "error.log").read_text() == ""
    finally:
        process.terminate()
        process.wait(10)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def chat_body(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "go"}], **fields}


def test_default_idle_time_outlasts_nginx() -> None:
    assert HttpConfig().keepalive_timeout_s > 75


def test_connections_to_the_server_are_reused(tmp_path: Path) -> None:
    with live_server(Setup()) as server, nginx_before(server, tmp_path) as client:
        before = len(server.server.server_state.connections)
        for number in range(30):
            answer = client.post(CHAT, json=chat_body(stream=number % 2 == 0), headers={"x-request-id": f"r{number}"})
            assert answer.status_code == 200
            assert answer.headers["x-request-id"] == f"r{number}"
            # A client that comes anew each time; nginx still goes on with its own connection.
            assert httpx.get(f"{client.base_url}/health", trust_env=False).status_code == 200
        assert len(server.server.server_state.connections) - before <= 2


def test_streams_pass_as_they_come(tmp_path: Path) -> None:
    """The first events arrive while the engine is still at it: it answers for ever until the client has left."""
    endless = Script(text="word " * 20_000, step_ms=5)
    with live_server(Setup(default=endless)) as server, nginx_before(server, tmp_path) as client:
        with client.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=4000)) as answer:
            assert answer.status_code == 200
            events = iter(answer.iter_lines())
            seen = [line for line in (next(events) for _ in range(10)) if line.startswith("data: ")]
            assert len(seen) >= 4
            assert server.replica.num_running == 1
        # Leaving the proxy is leaving the server.
        server.wait_until(server.is_idle, "cancelled through the proxy", 2)


def test_errors_and_streams_arrive_unchanged(tmp_path: Path) -> None:
    http = {"api_keys": ("sk-1",), "max_body_bytes": 2048}
    with live_server(Setup(http=http)) as server, nginx_before(server, tmp_path) as client:
        key = {"authorization": "Bearer sk-1"}
        assert client.post(CHAT, json=chat_body()).json()["error"]["code"] == "invalid_api_key"
        assert client.post(CHAT, content=b"{", headers=key).status_code == 400
        assert client.post(CHAT, content=b"x" * 4000, headers=key).status_code == 413
        streamed = parse(client.post(CHAT, json=chat_body(stream=True), headers=key).text)
        assert streamed.text == "Paris is the capital." and streamed.done


def test_no_request_is_lost_at_the_proxys_idle_limit(tmp_path: Path) -> None:
    """Requests that come just when nginx forgets its idle connections (1 s here); the server keeps its own for 3 s, so
    none can meet a connection that is being closed under it."""
    changes = {"keepalive_timeout 60s;": "keepalive_timeout 1s;"}
    with (
        live_server(Setup(http={"keepalive_timeout_s": 3})) as server,
        nginx_before(server, tmp_path, changes) as client,
        ThreadPoolExecutor(16) as threads,
    ):

        def visit(seed: int) -> list[int]:
            gaps, statuses = random.Random(seed), []
            for _ in range(4):
                statuses.append(client.post(CHAT, json=chat_body()).status_code)
                time.sleep(1 + gaps.uniform(-0.02, 0.02))
            return statuses

        assert [status for statuses in threads.map(visit, range(16)) for status in statuses] == [200] * 64
