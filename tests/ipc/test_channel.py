"""One suite for both channels: the socket and its in-process twin."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from twinpath.ipc import Channel, ChannelClosed, FrameError, SocketChannel
from twinpath.ipc.link import Link, connect_link
from twinpath.ipc.local import local_pair
from twinpath.ipc.messages import Cancel, Gauges, Heartbeat, Submit, ToGateway
from twinpath.types import Request, SamplingParams

TIMEOUT_S = 20


class Listener:
    """A LinkHandler whose messages can be awaited."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[ToGateway] = asyncio.Queue()
        self.reasons: list[str] = []
        self.closed = asyncio.Event()

    def on_message(self, message: ToGateway) -> None:
        self.messages.put_nowait(message)

    def on_closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self.closed.set()


@pytest.fixture(params=["socket", "spinning", "local"])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Link, Channel, Listener]]:
    listener = Listener()
    link: Link
    channel: Channel
    if request.param == "local":
        link, channel = local_pair(listener)
    else:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        link, channel = await connect_link(ours, listener), SocketChannel(theirs)
        channel.spin_s = 0.05 if request.param == "spinning" else 0.0
    yield link, channel, listener
    link.close()
    channel.close()


async def test_messages_arrive_in_order_both_ways(ends: tuple[Link, Channel, Listener]) -> None:
    link, channel, listener = ends
    for number in range(100):
        link.send(Cancel(f"r{number}"))
        await asyncio.to_thread(channel.send, Heartbeat(True, number, Gauges()))
    assert [await asyncio.to_thread(channel.receive) for _ in range(100)] == [Cancel(f"r{n}") for n in range(100)]
    async with asyncio.timeout(TIMEOUT_S):
        assert [(await listener.messages.get()).progress for _ in range(100)] == list(range(100))  # type: ignore[union-attr]


async def test_a_message_larger_than_any_socket_buffer_passes(ends: tuple[Link, Channel, Listener]) -> None:
    link, channel, _ = ends
    request = Request(request_id="big", prompt_ids=list(range(1_000_000)), sampling=SamplingParams(max_tokens=1))
    link.send(Submit(request))
    async with asyncio.timeout(TIMEOUT_S):
        assert await asyncio.to_thread(channel.receive) == Submit(request)


async def test_receive_ends_without_a_message_after_its_time_or_when_woken(
    ends: tuple[Link, Channel, Listener],
) -> None:
    link, channel, _ = ends
    assert channel.receive(0.0) is None and channel.receive(0.001) is None
    waiting = asyncio.create_task(asyncio.to_thread(channel.receive))
    channel.wake()
    async with asyncio.timeout(TIMEOUT_S):
        assert await waiting is None
    link.send(Cancel("r"))
    async with asyncio.timeout(TIMEOUT_S):
        assert await asyncio.to_thread(channel.receive) == Cancel("r")


async def test_closing_the_link_ends_the_engines_side(ends: tuple[Link, Channel, Listener]) -> None:
    link, channel, listener = ends
    link.close()
    with pytest.raises(ChannelClosed):
        await asyncio.to_thread(channel.receive)
    async with asyncio.timeout(TIMEOUT_S):
        await listener.closed.wait()
    with pytest.raises(ChannelClosed):
        channel.send(Heartbeat(False, 0, Gauges()))
    link.send(Cancel("late"))
    assert len(listener.reasons) == 1


async def test_closing_the_channel_is_told_once_and_after_all_messages(ends: tuple[Link, Channel, Listener]) -> None:
    _, channel, listener = ends
    channel.send(Heartbeat(True, 1, Gauges()))
    channel.close()
    async with asyncio.timeout(TIMEOUT_S):
        await listener.closed.wait()
    assert listener.messages.qsize() == 1 and len(listener.reasons) == 1


async def test_garbage_from_the_engine_closes_the_link_with_a_reason() -> None:
    listener = Listener()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    await connect_link(ours, listener)
    theirs.sendall(b"\x05\0\0\0hello")
    async with asyncio.timeout(TIMEOUT_S):
        await listener.closed.wait()
    theirs.close()
    assert "undecodable frame of 5 bytes" in listener.reasons[0]


def test_garbage_from_the_gateway_is_a_frame_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = SocketChannel(theirs)
    ours.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(FrameError, match="limit"):
        channel.receive()
    ours.close()
    channel.close()


def test_a_frame_cut_by_the_end_of_the_stream_is_the_end_of_the_stream() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = SocketChannel(theirs)
    ours.sendall(b"\x10\0\0\0half")
    ours.close()
    with pytest.raises(ChannelClosed, match="end of stream"):
        channel.receive()
    channel.close()


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="no eventfd here")
async def test_a_bell_is_heard_where_receive_waits_and_ends_no_wait() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    link, channel = await connect_link(ours, Listener()), SocketChannel(theirs, bell)
    heard = 0

    def on_bell() -> None:
        nonlocal heard
        heard += 1
        link_loop.call_soon_threadsafe(link.send, Cancel(f"r{heard}"))

    link_loop = asyncio.get_running_loop()
    async with asyncio.timeout(TIMEOUT_S):
        os.eventfd_write(bell, 1)
        assert await asyncio.to_thread(channel.receive, 0.01) is None  # Nobody listens, no message comes.
        channel.on_bell = on_bell
        for number in range(1, 4):
            waiting = asyncio.create_task(asyncio.to_thread(channel.receive))
            os.eventfd_write(bell, 1)
            assert await waiting == Cancel(f"r{number}")
    assert heard == 3
    assert channel.receive(0.0) is None
    link.close()
    channel.close()
    with pytest.raises(OSError, match="descriptor"):
        os.eventfd_write(bell, 1)
