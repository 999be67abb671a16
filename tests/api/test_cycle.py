"""What goes over the wire for an app's messages. The right bytes are RFC 9112's."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from twinpath.api.cycle import Cycle


class Wire:
    """A transport and its flow control, as far as a cycle knows them."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.write_paused = self.is_closed = False
        self.num_complete = 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def completed(self) -> None:
        self.num_complete += 1


def cycle_on(wire: Any, *, method: str = "POST", keep_alive: bool = True) -> Cycle:
    log = logging.getLogger("test")
    scope: Any = {"type": "http", "method": method}
    return Cycle(
        scope, wire, wire, log, log, False, [(b"date", b"now")], asyncio.Event(), False, keep_alive, wire.completed
    )


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_a_stream_s_head_goes_with_its_first_part() -> None:
    wire = Wire()
    cycle = cycle_on(wire)
    await cycle.send(start((b"content-type", b"text/event-stream")))
    assert wire.writes == []
    await cycle.send(body(b"data: x\n\n", more=True))
    head = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    assert wire.writes == [head + b"9\r\ndata: x\n\n\r\n"]
    await cycle.send(body(b"y" * 16))
    assert wire.writes[1:] == [b"10\r\n" + b"y" * 16 + b"\r\n0\r\n\r\n"]
    assert cycle.response_complete and wire.num_complete == 1 and not wire.is_closed


async def test_an_empty_part_sends_the_head_alone() -> None:
    wire = Wire()
    cycle = cycle_on(wire)
    await cycle.send(start())
    await cycle.send(body(b"", more=True))
    assert wire.writes == [b"HTTP/1.1 200 OK\r\ndate: now\r\ntransfer-encoding: chunked\r\n\r\n"]


async def test_a_known_length_is_kept_and_no_keep_alive_closes() -> None:
    wire = Wire()
    cycle = cycle_on(wire, keep_alive=False)
    await cycle.send(start((b"content-length", b"2"), status=404))
    await cycle.send(body(b"no"))
    assert wire.writes == [
        b"HTTP/1.1 404 Not Found\r\ndate: now\r\ncontent-length: 2\r\nconnection: close\r\n\r\n" + b"no"
    ]
    assert wire.is_closed


async def test_head_and_no_content_have_no_body() -> None:
    for method, status in (("HEAD", 200), ("OPTIONS", 204)):
        wire = Wire()
        cycle = cycle_on(wire, method=method)
        await cycle.send(start(status=status))
        await cycle.send(body(b""))
        assert len(wire.writes) == 1 and wire.writes[0].endswith(b"date: now\r\n\r\n") and cycle.response_complete


@pytest.mark.parametrize("data", [b"xyz", b"x"])
async def test_an_answer_of_another_length_than_it_says_is_a_fault(data: bytes) -> None:
    cycle = cycle_on(Wire())
    await cycle.send(start((b"content-length", b"2")))
    with pytest.raises(RuntimeError, match="Content-Length"):
        await cycle.send(body(data))


async def test_a_header_cannot_smuggle_another() -> None:
    wire = Wire()
    with pytest.raises(RuntimeError, match="line break"):
        await cycle_on(wire).send(start((b"x-request-id", b"a\r\nset-cookie: b")))
    assert wire.writes == []


async def test_messages_out_of_turn_are_faults() -> None:
    cycle = cycle_on(Wire())
    with pytest.raises(RuntimeError):
        await cycle.send(body(b"x"))
    await cycle.send(start())
    with pytest.raises(RuntimeError):
        await cycle.send(start())
    await cycle.send(body(b""))
    with pytest.raises(RuntimeError):
        await cycle.send(body(b"x"))
