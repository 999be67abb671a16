"""Starts a server under test in its own process, waits until it answers, and ends it with everything below it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers import Peers
from twinpath.bench import process_tree

START_TIMEOUT_S = 120.0


class ServerError(RuntimeError):
    """A server did not become ready; carries the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One server process. `ready_s` is the time from its start to its first good answer on `ready_path`."""

    def __init__(self, name: str, argv: Sequence[str], port: int, ready_path: str, log_path: Path) -> None:
        self.name, self.argv, self.port = name, [str(part) for part in argv], port
        self.url = f"http://127.0.0.1:{port}"
        self._log_path = log_path
        begin = time.perf_counter()
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait(ready_path, begin + START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.perf_counter() - begin

    def _wait(self, path: str, deadline: float) -> None:
        while time.perf_counter() < deadline:
            if self.process.poll() is not None:
                break
            if self._answers(path):
                return
            time.sleep(0.01)
        tail = self._log_path.read_text(errors="replace")[-2000:]
        raise ServerError(f"{self.name} is not ready (exit code {self.process.poll()}): {tail}")

    def _answers(self, path: str) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def pids(self) -> list[int]:
        return process_tree(self.process.pid)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is still there after 20 s."""
        below = self.pids()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            for pid in below:
                _kill(pid)
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def twinpath_server(model: Path, log_dir: Path, *flags: str, name: str = "twinpath") -> Server:
    """`twinpath serve` with its defaults and `flags`."""
    port = free_port()
    argv = [sys.executable, "-m", "twinpath", "serve", str(model), "--port", str(port), *flags]
    return Server(name, argv, port, "/health/ready", log_dir / f"{name}.log")


def llama_server(peers: Peers, model: Path, log_dir: Path, *, threads: int, flash: bool) -> Server:
    """llama-cpp-python's OpenAI server."""
    port = free_port()
    name = f"llama.cpp {threads}t{' fa' if flash else ''}"
    settings = {
        "model": model,
        "host": "127.0.0.1",
        "port": port,
        "n_threads": threads,
        "n_threads_batch": threads,
        "flash_attn": flash,
        "n_ctx": 4096,
        "verbose": False,
    }
    flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    argv = [str(peers.python), "-m", "llama_cpp.server", *flags]
    return Server(name, argv, port, "/v1/models", log_dir / f"{name.replace(' ', '-')}.log")
