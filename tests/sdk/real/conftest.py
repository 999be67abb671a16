"""One `twinpath serve` with the default model for all client libraries (`make test-sdk-model`).

`TWINPATH_SERVE` is the command that serves: the clients live in an environment without the compiled step.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

READY = re.compile(r"ready on (http://\S+)")
WINDOW_TOKENS = 2048


@dataclass(frozen=True)
class RealServer:
    """Its address, and whether anything runs there."""

    url: str

    def is_idle(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        counts = [line.split()[-1] for line in lines if line.startswith("vllm:num_requests_running{")]
        return bool(counts) and all(float(count) == 0 for count in counts)

    def wait_until_idle(self, within_s: float = 5.0) -> None:
        deadline = time.monotonic() + within_s
        while not self.is_idle():
            assert time.monotonic() < deadline, "the request of a client that left still runs"
            time.sleep(0.05)


@pytest.fixture(scope="session")
def real_server() -> Iterator[RealServer]:
    command = os.environ.get("TWINPATH_SERVE")
    if not command:
        pytest.skip("TWINPATH_SERVE names no command that serves the default model (make test-sdk-model)")
    flags = ["--port", "0", "--served-model-name", "smollm2", "--max-model-len", str(WINDOW_TOKENS)]
    process = subprocess.Popen([*shlex.split(command), *flags], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = next((match for line in process.stderr if (match := READY.search(line))), None)
        assert found is not None, f"the server ended with {process.wait()}"
        yield RealServer(found.group(1))
    finally:
        process.terminate()
        process.wait(30)
