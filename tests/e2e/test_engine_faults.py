"""The engine dies or the server is told to stop, in the middle of a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.served import Served, serving, write_script

pytestmark = pytest.mark.slow

#: Long enough to be running whenever the test acts, short enough to drain.
SLOW_TOKENS = 400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    script = write_script(
        tmp_path,
        engine={"step_ms": 10},
        scripts=[{"match": "slowly", "text": "x" * SLOW_TOKENS}],
        default={"text": "ok"},
    )
    with serving(script) as served:
        yield served


def body(text: str, stream: bool) -> dict[str, Any]:
    return {"model": "script", "messages": [{"role": "user", "content": text}], "stream": stream}


def ask(server: Served, text: str = "hello") -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body(text, stream=False), timeout=30)


def data_lines(response: httpx.Response) -> Iterator[str]:
    return (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))


def content_of(chunk: str) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in json.loads(chunk)["choices"])


def test_killed_engine_is_an_error_event_and_serves_again(server: Served) -> None:
    url = f"{server.url}/v1/chat/completions"
    first_engine = server.engine()
    with httpx.stream("POST", url, json=body("slowly", stream=True), timeout=30) as response:
        lines = data_lines(response)
        assert any(content_of(next(lines)) for _ in range(3))
        first_engine.kill()
        rest = list(lines)
    assert "error" in json.loads(rest[-1]), rest[-1]
    assert '"finish_reason":"stop"' not in "".join(rest)
    # The gateway holds the request until the new engine is ready.
    answer = ask(server)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "ok"
    assert server.engine().pid != first_engine.pid


def test_first_interrupt_drains_the_running_stream(server: Served) -> None:
    url = f"{server.url}/v1/chat/completions"
    family = server.processes()
    with httpx.stream("POST", url, json=body("slowly", stream=True), timeout=30) as response:
        lines = data_lines(response)
        first = next(lines)
        server.interrupt()
        rest = list(lines)
    assert rest[-1] == "[DONE]"
    assert "".join(content_of(chunk) for chunk in [first, *rest[:-1]]) == "x" * SLOW_TOKENS
    assert server.process.wait(20) == 0
    assert not [process for process in family[1:] if process.is_running()]


def test_second_interrupt_stops_at_once(server: Served) -> None:
    url = f"{server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body("slowly", stream=True), timeout=30) as response:
        lines = data_lines(response)
        next(lines)
        server.interrupt()
        # Two signals of one kind that are pending at once are one: the first must have been seen.
        server.wait_for(re.compile("draining 1 request"))
        server.interrupt()
        rest = list(lines)
    assert "error" in json.loads(rest[-1]), rest[-1]
    assert len(rest) < SLOW_TOKENS
    assert server.process.wait(20) == 0
    assert "Traceback" not in server.stderr
