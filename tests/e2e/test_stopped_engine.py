"""SIGSTOP of the engine: not ready soon, the stream gets an error event, and it serves again by itself."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import httpx
import pytest

from e2e.served import serving, write_script

pytestmark = pytest.mark.slow

#: 3 s of silence, the check's interval, and the machine's own pace.
NOTICED_WITHIN_S, BACK_WITHIN_S = 6.0, 15.0


def status_of(url: str) -> int:
    return httpx.get(f"{url}/health/ready", trust_env=False, timeout=5).status_code


def wait_for_status(url: str, status: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while status_of(url) != status:
        assert time.monotonic() < deadline, f"/health/ready is not {status} within {within_s} s"
        time.sleep(0.05)


def test_a_stopped_engine_is_not_ready_and_comes_back(tmp_path: Path) -> None:
    script = write_script(
        tmp_path, scripts=[{"match": "slowly", "text": "x" * 2000, "step_ms": 20}], default={"text": "ok"}
    )
    body = {"messages": [{"role": "user", "content": "slowly"}], "stream": True}
    with serving(script) as served:
        url = served.url
        lines: list[str] = []
        first = threading.Event()

        def read() -> None:
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=60) as answer:
                for line in answer.iter_lines():
                    lines.append(line)
                    first.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert first.wait(20)
        served.engine().suspend()
        wait_for_status(url, 503, NOTICED_WITHIN_S)
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        reader.join(20)
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert json.loads(events[-1])["error"]["code"] == "engine_error"
        wait_for_status(url, 200, BACK_WITHIN_S)
        answer = httpx.post(
            f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}, trust_env=False
        )
        assert answer.json()["choices"][0]["message"]["content"] == "ok"
