"""Who reads the channel when, and that nothing is lost between the two readers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Event

import msgspec
import pytest

from twinpath.ipc import ChannelClosed, SocketChannel
from twinpath.ipc.codec import gateway_codec
from twinpath.ipc.messages import Cancel
from twinpath.scheduler.inbox import Inbox

TIMEOUT_S = 20


class Gateway:
    """The other end, and what the inbox's callbacks were told."""

    def __init__(self) -> None:
        self.socket, engine_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.channel = SocketChannel(engine_end)
        self.cancelled: list[str] = []
        self.heard, self.closed = Event(), Event()
        self.inbox = Inbox(self.channel, self.on_cancel, self.closed.set)

    def on_cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.heard.set()

    def say(self, message: msgspec.Struct) -> None:
        self.socket.sendall(gateway_codec().encode(message))


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.socket.close()
    gateway.channel.close()


def test_the_loop_reads_itself_while_nothing_is_watched(gateway: Gateway) -> None:
    assert gateway.inbox.take() is None
    assert gateway.inbox.wait(0.001) is None
    for name in "abc":
        gateway.say(Cancel(name))
    assert [gateway.inbox.wait(), gateway.inbox.take(), gateway.inbox.take()] == [Cancel("a"), Cancel("b"), Cancel("c")]
    assert gateway.cancelled == []


def test_a_cancellation_during_a_watch_is_told_at_once_and_kept(gateway: Gateway) -> None:
    gateway.inbox.watch()
    gateway.inbox.watch()
    gateway.say(Cancel("a"))
    assert gateway.heard.wait(TIMEOUT_S) and gateway.cancelled == ["a"]
    assert gateway.inbox.take() == Cancel("a")
    assert gateway.inbox.take() is None


def test_nothing_is_lost_or_reordered_when_the_readers_change(gateway: Gateway) -> None:
    got = []
    for turn in range(50):
        gateway.inbox.watch()
        for half in range(2):
            gateway.say(Cancel(f"{turn}.{half}"))
        got += [gateway.inbox.wait(TIMEOUT_S), gateway.inbox.wait(TIMEOUT_S)]
    assert got == [Cancel(f"{turn}.{half}") for turn in range(50) for half in range(2)]


def test_the_end_is_told_during_a_watch_and_raised_after_what_came_before(gateway: Gateway) -> None:
    gateway.inbox.watch()
    gateway.say(Cancel("last"))
    gateway.socket.shutdown(socket.SHUT_WR)
    assert gateway.closed.wait(TIMEOUT_S)
    assert gateway.inbox.wait() == Cancel("last")
    with pytest.raises(ChannelClosed):
        gateway.inbox.wait()


@pytest.mark.parametrize("watched", [False, True])
def test_a_broken_stream_is_an_end(gateway: Gateway, watched: bool) -> None:
    if watched:
        gateway.inbox.watch()
    gateway.socket.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ChannelClosed):
        gateway.inbox.wait()


def test_the_end_is_raised_while_the_loop_reads(gateway: Gateway) -> None:
    gateway.socket.close()
    with pytest.raises(ChannelClosed):
        gateway.inbox.take()
