"""The engine process that starts before its settings are known."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.ipc.codec import gateway_codec
from twinpath.ipc.messages import Ready
from twinpath.ipc.settings import encode_settings
from twinpath.spawn import SpareWorker

TIMEOUT_S = 60


@pytest.fixture
def settings(tmp_path: Path) -> str:
    path = tmp_path / "script.json"
    path.write_text("{}")
    return encode_settings(EngineConfig(model_path=path, kind="scripted"), SchedulerConfig(max_num_seqs=5))


@pytest.fixture
def spare() -> Iterator[SpareWorker]:
    with SpareWorker() as found:
        yield found


def ready(ours: socket.socket) -> Ready:
    ours.settimeout(TIMEOUT_S)
    codec = gateway_codec()
    while data := ours.recv(65536):
        for message in codec.feed(data):
            if isinstance(message, Ready):
                return message
    raise AssertionError("the worker ended before it was ready")


def test_it_serves_with_the_settings_that_it_is_told(spare: SpareWorker, settings: str) -> None:
    spare.tell(settings)
    taken = spare.take(settings)
    assert taken is not None
    process, ours, bell = taken
    bell.close()
    with ours:
        assert ready(ours).max_num_seqs == 5
    assert process.wait(TIMEOUT_S) == 0
    assert spare.take(settings) is None


def test_other_settings_than_it_was_told_are_for_another_process(spare: SpareWorker, settings: str) -> None:
    spare.tell(settings)
    assert spare.take(settings.replace("5", "6")) is None


def test_one_that_nobody_takes_ends_with_whoever_started_it(settings: str) -> None:
    with SpareWorker() as untold:
        untold_process = untold._spawned
    with SpareWorker() as told:
        told.tell(settings)
        told_process = told._spawned
    assert untold_process is not None and told_process is not None
    assert untold_process[0].poll() is not None and told_process[0].poll() is not None


def test_one_whose_starter_is_gone_leaves(spare: SpareWorker) -> None:
    assert spare._spawned is not None
    process, ours, _ = spare._spawned
    assert process.stdin is not None
    process.stdin.close()
    with ours:
        assert process.wait(TIMEOUT_S) == 0
