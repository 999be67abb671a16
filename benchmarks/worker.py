"""Starts a contestant in its own process and talks to it; the other end is `contestants/protocol.py`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from twinpath.bench import CpuMeter

CONTESTANTS = Path(__file__).resolve().parent / "contestants"


class WorkerError(RuntimeError):
    """A contestant died or refused; carries the end of what it wrote to stderr."""


class Worker:
    """One contestant process. Commands run one at a time; between them the process blocks on its stdin."""

    def __init__(self, name: str, argv: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.argv = list(argv)
        self._log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **(env or {})},
                cwd=CONTESTANTS,
            )
        self.description = self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._log_path.read_text(errors="replace")[-2000:]
            raise WorkerError(f"{self.name} ended with {self._process.wait()}: {tail}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One command.

        The answer also says how busy other processes kept the machine meanwhile (`others_percent`, of one core).
        """
        assert self._process.stdin is not None
        meter = CpuMeter([self._process.pid])
        self._process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._receive()
        answer["others_percent"] = meter.others_percent()
        return answer

    def close(self) -> None:
        """Closing its stdin asks it to leave; it is killed when it has not after 20 s."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
