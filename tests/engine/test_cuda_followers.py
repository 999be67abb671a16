"""Rank 0's hold on the processes of the other ranks: what it is told when one ends, hangs or fails; none is left."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from twinpath.engine.cuda.ranks import Followers

TIMEOUT_S = 30.0
#: A busy machine may keep a rank from answering for longer: none is blamed wrongly where that would count.
SILENT_S = 1.0
#: Ranks without a model, which need no torch; after what they say they answer until rank 0 is gone.
RANK = """
import os, socket, sys
from twinpath.engine.cuda.rank_messages import Failed, Loaded, Ping, RankChannel, RankClosed
channel = RankChannel(socket.socket(fileno=int(sys.argv[1])))
hello = channel.receive()
assert (hello.rank, hello.world) == (1, 2) and hello.store_port > 0
{}
try:
    while True:
        message = channel.receive()
        assert isinstance(message, Ping)
        channel.send(message)
except RankClosed:
    pass
"""
LOADED = "channel.send(Loaded())"


class Losses:
    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []
        self.happened = threading.Event()

    def __call__(self, reason: str, is_user_error: bool) -> None:
        self.told.append((reason, is_user_error))
        self.happened.set()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[Followers, Losses]]]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    started: list[Followers] = []

    def run(says: str) -> tuple[Followers, Losses]:
        losses = Losses()
        followers = Followers(2, lambda fd: [sys.executable, "-c", RANK.format(says), str(fd)], losses, SILENT_S)
        started.append(followers)
        return followers, losses

    yield run
    for followers in started:
        followers.close()


def test_ranks_that_answer_are_left_alone_and_leave_with_rank_0(
    start: Callable[[str], tuple[Followers, Losses]],
) -> None:
    followers, losses = start(LOADED)
    followers.wait_loaded()
    followers.close()
    assert [process.returncode for process in followers._processes] == [0]
    assert not losses.told


@pytest.mark.parametrize(
    ("says", "number", "reason"),
    [
        (LOADED, signal.SIGKILL, "rank 1 of 2 ended (signal SIGKILL)"),
        (LOADED, signal.SIGSTOP, "rank 1 of 2 has not answered for "),
        ("os._exit(3)", None, "rank 1 of 2 ended (exit code 3)"),
        ("channel.send(Failed('no memory', True))", None, "rank 1 of 2: no memory"),
    ],
    ids=["killed", "stopped", "exits while it loads", "fails while it loads"],
)
def test_a_rank_that_is_lost_is_named(
    start: Callable[[str], tuple[Followers, Losses]], says: str, number: int | None, reason: str
) -> None:
    followers, losses = start(says)
    if number is not None:
        followers.wait_loaded()
        followers._processes[0].send_signal(number)
    assert losses.happened.wait(TIMEOUT_S)
    assert losses.told[0][0].startswith(reason)
    assert losses.told[0][1] == says.startswith("channel.send(Failed")
    followers.close()
    assert all(process.returncode is not None for process in followers._processes)
