"""Ports and what is asked of the installation."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from pathlib import Path

import grpc
import pytest

import twinpath
from e2e.served import refused, serving, write_script
from rpc.live_rpc import LiveRpc
from twinpath.errors import UserError
from twinpath.rpc import wire

GRPC_ON = re.compile(r"gRPC on (\S+)")


async def test_a_taken_port_is_one_line(rpc: LiveRpc) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="--grpc-port"):
            rpc.server.bind("127.0.0.1", taken.getsockname()[1])


def test_serve_answers_on_both_ports_and_drains_both(tmp_path: Path) -> None:
    model = write_script(
        tmp_path, scripts=[{"match": "long", "text": "x" * 300, "step_ms": 5}], default={"text": "hello"}
    )
    with serving(model, "--grpc-port", "0") as served:
        served.wait_for(re.compile("ready on"))
        address = served.wait_for(GRPC_ON).group(1)
        with grpc.insecure_channel(address) as channel:
            generate = channel.unary_stream(
                f"/{wire.SERVICE}/Generate", wire.GenerateRequest.SerializeToString, wire.GenerateResponse.FromString
            )
            assert "".join(response.text for response in generate(wire.GenerateRequest(text="hi"))) == "hello"
            running = generate(wire.GenerateRequest(text="long"))
            first = next(running)
            served.process.send_signal(signal.SIGTERM)
            rest = list(running)
            assert first.text + "".join(response.text for response in rest) == "x" * 300
            assert rest[-1].finish.reason == "stop"
        assert served.process.wait(20) == 0


def test_without_grpcio_the_flag_is_one_clear_line(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'grpc' else find(name, *rest)\n"
    )
    model = write_script(tmp_path, default={"text": "hello"})
    path = os.pathsep.join((str(tmp_path), str(Path(twinpath.__file__).parents[1])))
    code, message = refused(model, "--grpc-port", "0", env={"PYTHONPATH": path})
    assert code == 2
    assert message == "twinpath: --grpc-port needs grpcio: pip install 'twinpath[grpc]'"


SETTINGS, PING, GOAWAY, ACK = 4, 6, 7, 1


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """An HTTP/2 frame of the connection itself (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + bytes(4) + payload


async def test_pings_on_an_idle_channel_are_no_reason_to_hang_up(rpc: LiveRpc) -> None:
    """The library's own policy is to end a connection at its third early ping."""
    host, port = rpc.server.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS) + frame(SETTINGS, flags=ACK))
    async with asyncio.timeout(10):
        for number in range(10):
            writer.write(frame(PING, bytes([number]) * 8))
            answered = False
            while not answered:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                assert head[3] != GOAWAY
                answered = head[3] == PING and head[4] == ACK
    writer.close()
    await writer.wait_closed()
