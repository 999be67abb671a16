"""A real `twinpath serve` in its own process, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

READY = re.compile(r"ready on (http://\S+)")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0


class Served:
    """The process, its output so far, and its address once it is ready."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "twinpath", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200", **(env or {})},
        )
        self.lines: list[str] = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self.changed:
                    self.lines.append(line.rstrip("\n"))
                    self.changed.notify_all()
        with self.changed:
            self.lines.append("")
            self.changed.notify_all()

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines).strip()

    def wait_for(self, pattern: re.Pattern[str], timeout_s: float = START_TIMEOUT_S) -> re.Match[str]:
        """Block until a line of the output matches; fail when the process ends or the time is over."""
        found: list[re.Match[str]] = []

        def seen() -> bool:
            found.extend(match for line in self.lines if (match := pattern.search(line)))
            return bool(found) or not self.reader.is_alive()

        with self.changed:
            self.changed.wait_for(seen, timeout_s)
        assert found, f"no {pattern.pattern!r} within {timeout_s} s (exit code {self.process.poll()}):\n{self.stderr}"
        return found[0]

    @property
    def url(self) -> str:
        return self.wait_for(READY).group(1)

    def processes(self) -> list[psutil.Process]:
        """The server and everything below it."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def engine(self) -> psutil.Process:
        """The engine's process: the one below the server."""
        [engine] = [child for child in self.processes()[1:] if "twinpath" in " ".join(child.cmdline())]
        return engine

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def stop(self) -> int:
        """SIGTERM, then the exit code; SIGKILL for all when it does not end, which fails the test."""
        family = self.processes() if self.process.poll() is None else []
        self.process.terminate()
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        finally:
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.reader.join(STOP_TIMEOUT_S)
        return code


@contextlib.contextmanager
def serving(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """A server on a free port, stopped at the end."""
    served = Served(*arguments, "--port", "0", env=env)
    try:
        yield served
    finally:
        served.stop()


def refused(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and stderr of a server that must not start."""
    result = subprocess.run(
        [sys.executable, "-m", "twinpath", "serve", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
    )
    return result.returncode, result.stderr.strip()


def write_script(folder: Path, **content: Any) -> str:
    """A scripted engine's model address."""
    path = folder / "script.json"
    path.write_text(json.dumps(content))
    return f"scripted://{path}"
