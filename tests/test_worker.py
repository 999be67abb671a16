"""The engine process from outside: its exit codes and its one line for the user."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from twinpath import worker as process
from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.errors import UserError
from twinpath.ipc.codec import gateway_codec
from twinpath.ipc.messages import Drain, Fatal, Heartbeat, Ready, ToGateway
from twinpath.ipc.settings import WorkerSettings, decode_settings, encode_settings
from twinpath.scheduler import ConstraintsOnDemand, NoConstraints

TIMEOUT_S = 60


class Worker:
    """A worker process and the gateway's end of its socket."""

    def __init__(self, config: EngineConfig, scheduler: SchedulerConfig | None = None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        self._codec = gateway_codec()
        settings = encode_settings(config, scheduler or SchedulerConfig())
        with theirs:
            command = [sys.executable, "-m", "twinpath.worker", "--fd", str(theirs.fileno()), "--settings", settings]
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True)

    def first(self, kind: type[ToGateway]) -> ToGateway:  # type: ignore[valid-type]
        while data := self._socket.recv(65536):
            for message in self._codec.feed(data):
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"the worker ended without a {kind}")

    def drain(self) -> None:
        self._socket.sendall(self._codec.encode(Drain()))

    def hang_up(self) -> None:
        self._socket.close()

    def end(self) -> tuple[int, str]:
        """Exit code and stderr."""
        _, stderr = self.process.communicate(timeout=TIMEOUT_S)
        self._socket.close()
        return self.process.returncode, stderr


@pytest.fixture
def script(tmp_path: Path) -> EngineConfig:
    path = tmp_path / "script.json"
    path.write_text("{}")
    return EngineConfig(model_path=path, kind="scripted")


def test_settings_cross_the_border_whole() -> None:
    engine = EngineConfig(model_path=Path("/models/ä b.gguf"), threads=3, kv_cache_mb=64)
    scheduler = SchedulerConfig(max_num_seqs=7, enable_prefix_caching=False)
    assert decode_settings(encode_settings(engine, scheduler)) == WorkerSettings(engine, scheduler)


def test_ready_then_drain_is_exit_code_zero(script: EngineConfig) -> None:
    worker = Worker(script, SchedulerConfig(max_num_seqs=5))
    ready = worker.first(Ready)
    assert isinstance(ready, Ready) and ready.max_num_seqs == 5
    assert ready.facts["KV pool"] == "8,192 tokens in pages of 16"
    assert worker.first(Heartbeat)
    worker.drain()
    assert worker.end() == (0, "")


def test_a_closed_socket_ends_the_worker_quietly(script: EngineConfig) -> None:
    worker = Worker(script)
    worker.first(Ready)
    worker.hang_up()
    assert worker.end() == (0, "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_path": Path("/nowhere/model.json")}, "/nowhere/model.json"),
        ({"kind": "native", "model_path": Path("/nowhere/model.gguf")}, "/nowhere/model.gguf"),
        ({"kind": "native", "device": "cuda"}, "cuda"),
    ],
)
def test_a_users_mistake_is_fatal_with_one_line_and_exit_code_two(
    script: EngineConfig, change: dict[str, object], words: str
) -> None:
    worker = Worker(replace(script, **change))  # type: ignore[arg-type]
    fatal = worker.first(Fatal)
    assert isinstance(fatal, Fatal) and fatal.user_error
    assert words in fatal.message and "\n" not in fatal.message
    assert worker.end() == (2, "")


def test_the_worker_imports_neither_torch_nor_the_http_side() -> None:
    unwanted = ("torch", "starlette", "uvicorn", "asyncio")
    code = f"import sys, twinpath.worker; print([name for name in {unwanted} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.model
def test_the_default_model_is_ready_and_its_mistakes_are_told(default_model_path: Path) -> None:
    worker = Worker(EngineConfig(model_path=default_model_path, kv_cache_mb=64, max_model_len=1024))
    ready = worker.first(Ready)
    assert isinstance(ready, Ready) and (ready.vocab_size, ready.max_model_len) == (49_152, 1024)
    worker.drain()
    assert worker.end()[0] == 0
    worker = Worker(EngineConfig(model_path=default_model_path, max_model_len=100_000))
    fatal = worker.first(Fatal)
    assert isinstance(fatal, Fatal) and "beyond the model's window of 8192" in fatal.message
    assert worker.end()[0] == 2


class Beside:
    """Stands in for `build_engine` and `build_compiler`, which meet: neither waits for the other to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, engine: Exception | None = None) -> None:
        self.grammars: object = ConstraintsOnDemand(lambda: pytest.fail("asked for"))
        self.may_end = threading.Event()
        self._engine_failure = engine
        self._meeting = threading.Barrier(2, timeout=TIMEOUT_S)
        monkeypatch.setattr(process, "build_engine", self.build_engine)
        monkeypatch.setattr(process, "build_compiler", self.build_compiler)

    def build_engine(self, *_: object) -> tuple[str, dict[str, str]]:
        self._meeting.wait()
        if self._engine_failure is not None:
            raise self._engine_failure
        self.may_end.set()
        return "engine", {}

    def build_compiler(self, _: object) -> object:
        self._meeting.wait()
        assert self.may_end.wait(TIMEOUT_S)
        if isinstance(self.grammars, Exception):
            raise self.grammars
        return self.grammars

    def load(self) -> tuple[object, dict[str, str], object]:
        settings = WorkerSettings(EngineConfig(model_path=Path("m.gguf")), SchedulerConfig())
        return process.load(settings, lambda *_: None, lambda *_: None)


def test_the_vocabulary_is_there_before_ready_and_built_beside_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Beside(monkeypatch)
    assert both.load() == ("engine", {}, both.grammars)


def test_a_vocabulary_that_cannot_be_built_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Beside(monkeypatch)
    both.grammars = ValueError("two ends")
    engine, facts, constraints = both.load()
    assert engine == "engine" and facts == {"grammars": "none: ValueError: two ends"}
    assert isinstance(constraints, NoConstraints)


def test_a_load_that_fails_does_not_wait_for_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Beside(monkeypatch, engine=UserError("no such file"))
    with pytest.raises(UserError, match="no such file"):
        both.load()
    assert not both.may_end.is_set()
    both.may_end.set()
