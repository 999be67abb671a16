"""Clients that leave or stall, in every phase: their work is cancelled soon, other streams go on.

A client that leaves is a closed socket, so these cases speak HTTP over one by hand.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from api.streams import parse
from twinpath.config import HttpConfig, SchedulerConfig
from twinpath.engine.scripted import Script, ScriptedShape

KEY = "sk-test"
#: The bound of the promise is 2 s; the machine may be busy with other tests.
CANCELLED_WITHIN_S = 2.0
ENDLESS = Script(text="word " * 20_000, step_ms=2, chunks=(4,))


class RawClient:
    """One POST over a socket of its own."""

    def __init__(self, server: LiveServer, *, receive_buffer: int | None = None, **fields: Any) -> None:
        body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 4000, **fields}
        content = json.dumps(body).encode()
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", server.port))
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + content)

    def read_events(self, count: int) -> bytes:
        data = b""
        while data.count(b"data: ") < count:
            data += self.socket.recv(4096)
        return data

    def close(self, *, reset: bool = False) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def setup(**changes: Any) -> Setup:
    return Setup(**{"default": ENDLESS, "http": {"api_keys": (KEY,)}, **changes})


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
def test_b1_22_a_stream_closed_after_three_events(reset: bool) -> None:
    with live_server(setup()) as server:
        client = RawClient(server, stream=True)
        client.read_events(3)
        assert server.replica.num_running == 1
        client.close(reset=reset)
        server.wait_until(server.is_idle, "cancelled", CANCELLED_WITHIN_S)


def test_b1_22_a_whole_answer_closed_in_decode() -> None:
    with live_server(setup()) as server:
        client = RawClient(server)
        server.wait_until(lambda: server.replica.num_running == 1, "decoding")
        client.close()
        server.wait_until(server.is_idle, "cancelled", CANCELLED_WITHIN_S)


@pytest.mark.parametrize("streamed", [False, True])
def test_closed_in_prefill(streamed: bool) -> None:
    shape = ScriptedShape(prefill_us_per_token=20_000, layers=50)
    with live_server(setup(shape=shape)) as server:
        client = RawClient(server, stream=streamed, messages=[{"role": "user", "content": "p" * 400}])
        server.wait_until(lambda: server.replica.num_waiting == 1, "prefilling")
        client.close()
        server.wait_until(lambda: server.replica.num_inflight == 0, "cancelled", CANCELLED_WITHIN_S)


@pytest.mark.parametrize("streamed", [False, True])
def test_closed_in_the_queue(streamed: bool) -> None:
    with live_server(setup(scheduler=SchedulerConfig(max_num_seqs=1))) as server:
        running = RawClient(server, stream=True)
        running.read_events(2)
        waiting = RawClient(server, stream=streamed)
        server.wait_until(lambda: server.replica.num_waiting == 1, "queued")
        waiting.close()
        server.wait_until(lambda: server.replica.num_inflight == 1, "left the queue", CANCELLED_WITHIN_S)
        # The one that ran was not disturbed.
        running.read_events(5)
        running.close()


def test_closed_while_its_body_is_on_the_way() -> None:
    with live_server(setup()) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
                'content-length: 500\r\n\r\n{"mess'.encode()
            )
        server.wait_until(lambda: len(server.server.server_state.tasks) == 0, "let go")


def test_all_prompts_of_a_call_are_cancelled() -> None:
    with live_server(setup()) as server:
        content = json.dumps({"prompt": ["a", "b", "c"], "max_tokens": 4000}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\n"
            head += f"content-length: {len(content)}\r\n\r\n"
            raw.sendall(head.encode() + content)
            server.wait_until(lambda: server.replica.num_running == 3, "all run")
        server.wait_until(server.is_idle, "cancelled", CANCELLED_WITHIN_S)


def test_others_go_on_while_half_of_the_clients_leave() -> None:
    answer = Script(text="0123456789" * 20, step_ms=1, chunks=(2,))
    with live_server(setup(default=answer)) as server:
        results: list[str] = []

        def stay() -> None:
            body = {"messages": [{"role": "user", "content": "go"}], "stream": True}
            text = server.post("/v1/chat/completions", body, headers={"x-api-key": KEY}).text
            results.append(parse(text).text)

        threads = [threading.Thread(target=stay) for _ in range(6)]
        leaving = [RawClient(server, stream=True) for _ in range(6)]
        for thread in threads:
            thread.start()
        for number, client in enumerate(leaving):
            client.read_events(1 + number)
            client.close(reset=number % 2 == 0)
        for thread in threads:
            thread.join(20)
        assert results == ["0123456789" * 20] * 6


def test_a_reader_that_stalls_is_cancelled_and_its_connection_dropped() -> None:
    """Large logprobs fill the socket and the server's buffer soon; nothing more than that is kept for the reader."""
    http = {"api_keys": (KEY,), "write_timeout_s": 0.8}
    shape = ScriptedShape(max_model_len=60_000, num_pages=4000)
    answer = Script(text="x" * 60_000, chunks=(64,))
    with live_server(setup(default=answer, http=http, shape=shape)) as server:
        client = RawClient(server, receive_buffer=4096, stream=True, logprobs=True, top_logprobs=20, max_tokens=50_000)
        server.wait_until(lambda: server.replica.num_running == 1, "streaming")
        server.wait_until(server.is_idle, "cancelled", 8)
        server.wait_until(lambda: not server.server.server_state.tasks, "its task ended")
        # One connection is left: the test's own.
        server.wait_until(lambda: len(server.server.server_state.connections) == 1, "dropped")
        client.close()


def test_keep_alive_comments_fill_a_long_prefill() -> None:
    assert HttpConfig().sse_keepalive_s <= 15, "proxies and clients cut what is silent for longer"
    shape = ScriptedShape(prefill_us_per_token=4000, layers=50)
    with live_server(setup(shape=shape, http={"api_keys": (KEY,), "sse_keepalive_s": 0.2})) as server:
        body = {"messages": [{"role": "user", "content": "p" * 300}], "stream": True, "max_tokens": 4}
        answer = server.post("/v1/chat/completions", body, headers={"x-api-key": KEY})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        streamed = parse(answer.text)
        assert set(streamed.comments) == {": keep-alive"}
        assert len(streamed.comments) >= 2
        assert streamed.text == "word"
        assert streamed.done


def test_an_error_after_keep_alives_is_an_error_event() -> None:
    shape = ScriptedShape(prefill_us_per_token=3000, layers=50)
    failing = Script(text="x", fail_at=0)
    with live_server(setup(shape=shape, default=failing, http={"api_keys": (KEY,), "sse_keepalive_s": 0.2})) as server:
        body = {"messages": [{"role": "user", "content": "p" * 300}], "stream": True}
        streamed = parse(server.post("/v1/chat/completions", body, headers={"x-api-key": KEY}).text)
        assert streamed.comments and not streamed.done
        assert streamed.error is not None and streamed.error["type"] == "server_error"
        assert streamed.finish_reasons == []
