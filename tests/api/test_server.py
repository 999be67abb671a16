"""The listening side: bind mistakes, draining, stopping at once, keep-alive and idle limits."""

from __future__ import annotations

import resource
import socket
import threading

import httpx
import pytest

from api.live_server import LiveServer, Setup, live_server
from api.streams import Stream, parse
from api.test_disconnects import RawClient
from api.test_limits import read_all
from twinpath.api.listener import bind, fit_descriptors
from twinpath.config import HttpConfig, SchedulerConfig
from twinpath.engine.scripted import Script
from twinpath.errors import UserError

CHAT = "/v1/chat/completions"
SLOW = Script(text="0123456789" * 10, step_ms=10)
ENDLESS = Script(text="word " * 20_000, step_ms=5)


class Reader(threading.Thread):
    """Streams one chat in the background; `first` is set with the first event."""

    def __init__(self, server: LiveServer) -> None:
        super().__init__(daemon=True)
        self.first = threading.Event()
        self.body = ""
        self.status = 0
        self._server = server
        self.start()
        assert self.first.wait(10)

    def run(self) -> None:
        body = {"messages": [{"role": "user", "content": "go"}], "stream": True, "max_tokens": 4000}
        with self._server.client() as client, client.stream("POST", CHAT, json=body) as answer:
            self.status = answer.status_code
            for part in answer.iter_text():
                self.body += part
                self.first.set()

    def result(self) -> Stream:
        self.join(15)
        assert not self.is_alive(), "the stream did not end"
        return parse(self.body)


def stop(server: LiveServer) -> None:
    server.loop.call_soon_threadsafe(server.server.stop)


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} on 127.0.0.1 is in use"):
            bind(HttpConfig(port=port, max_connections=10))


def test_a_host_that_is_none_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="cannot listen on host 'no such host'"):
        bind(HttpConfig(host="no such host", port=0, max_connections=10))


def test_ipv6_can_be_listened_on() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with bind(HttpConfig(host="::1", port=0, max_connections=10)) as listener:
            assert listener.family == socket.AF_INET6
    except UserError:
        pytest.skip("no IPv6 loopback here")


class Limits:
    """RLIMIT_NOFILE of another machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, highest: int = 1 << 30) -> None:
        self.now = (soft, hard)
        self.highest = highest
        monkeypatch.setattr(resource, "getrlimit", lambda which: self.now)
        monkeypatch.setattr(resource, "setrlimit", self.set)

    def set(self, which: int, new: tuple[int, int]) -> None:
        if new[0] > self.highest:
            raise ValueError("current limit exceeds maximum limit")
        self.now = new


def test_descriptor_limit_is_raised_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, 1024, 65_536)
    assert fit_descriptors(500) == 500
    assert limits.now == (1024, 65_536)
    assert fit_descriptors(10_000) == 10_000
    assert limits.now == (10_256, 65_536)


def test_fewer_descriptors_mean_fewer_connections_and_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(monkeypatch, 1024, 4096)
    assert fit_descriptors(10_000) == 4096 - 256
    assert limits.now == (4096, 4096)
    assert "allows 3840 connections, not 10000" in caplog.text


def test_an_infinite_limit_that_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS."""
    limits = Limits(monkeypatch, 256, resource.RLIM_INFINITY, highest=10_240)
    assert fit_descriptors(10_000) == 10_240 - 256
    assert limits.now[0] == 10_240


def test_hardly_any_descriptors_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, 64, 128)
    with pytest.raises(UserError, match="limit of 128 open files"):
        fit_descriptors(10_000)


def test_draining_finishes_streams_and_refuses_new_requests() -> None:
    server = LiveServer(Setup(default=SLOW))
    with server.client() as kept:
        assert kept.get("/health").status_code == 200
        reader = Reader(server)
        stop(server)
        streamed = reader.result()
    assert streamed.text == "0123456789" * 10
    assert streamed.done
    server._thread.join(10)
    assert not server._thread.is_alive()
    with pytest.raises(httpx.ConnectError), server.client() as client:
        client.get("/health")
    server.http.close()


def test_after_the_drain_time_streams_end_with_an_error_event() -> None:
    server = LiveServer(Setup(default=ENDLESS, http={"drain_timeout_s": 0.3}))
    reader = Reader(server)
    stop(server)
    streamed = reader.result()
    assert streamed.error is not None and streamed.error["code"] == "shutting_down"
    assert not streamed.done and not streamed.finish_reasons
    server.close()


def test_a_second_stop_ends_streams_at_once() -> None:
    server = LiveServer(Setup(default=ENDLESS, http={"drain_timeout_s": 60}))
    reader = Reader(server)
    stop(server)
    stop(server)
    streamed = reader.result()
    assert streamed.error is not None
    server.close()


def test_whole_answers_cut_by_a_stop_are_a_503() -> None:
    server = LiveServer(Setup(default=ENDLESS, http={"drain_timeout_s": 0.2}))
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(server.chat("go", max_tokens=4000)))
    thread.start()
    server.wait_until(lambda: server.replica.num_running == 1, "running")
    stop(server)
    thread.join(10)
    [answer] = answers
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "shutting_down"
    assert answer.headers["retry-after"]
    server.close()


def test_idle_connections_do_not_hold_up_a_stop() -> None:
    server = LiveServer(Setup(http={"drain_timeout_s": 60}))
    with socket.create_connection(("127.0.0.1", server.port)) as idle:
        server.wait_until(lambda: len(server.server.server_state.connections) >= 1, "connected")
        server.close()
        assert idle.recv(1) == b""


def test_connections_are_reused() -> None:
    with live_server(Setup()) as server:
        before = len(server.server.server_state.connections)
        with server.client() as client:
            for _ in range(5):
                client.get("/health")
                client.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}], "stream": True}).read()
            assert len(server.server.server_state.connections) == before + 1


def test_keep_alive_can_be_off() -> None:
    with live_server(Setup(http={"keepalive": False})) as server:
        for answer in (server.http.get("/health"), server.chat(stream=True)):
            assert answer.headers["connection"] == "close"
        server.wait_until(lambda: not server.server.server_state.connections, "closed")


@pytest.mark.parametrize("ask_first", [False, True])
def test_idle_connections_are_closed_after_the_keep_alive_time(ask_first: bool) -> None:
    with live_server(Setup(http={"keepalive_timeout_s": 1})) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
            if ask_first:
                raw.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            data = read_all(raw)
        assert data.startswith(b"HTTP/1.1 200") if ask_first else data == b""


def test_headers_that_never_end_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    from twinpath.api import protocol

    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.3)
    with live_server(Setup()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nx-slow: ")
        assert read_all(raw) == b""


def test_bodies_that_never_end_are_408(monkeypatch: pytest.MonkeyPatch) -> None:
    from twinpath.api import generation

    monkeypatch.setattr(generation, "BODY_IDLE_TIMEOUT_S", 0.3)
    with live_server(Setup()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert raw.recv(4096).startswith(b"HTTP/1.1 408")


def test_pipelined_requests_are_answered_in_order() -> None:
    with live_server(Setup()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(
            b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        data = read_all(raw)
        assert data.count(b"HTTP/1.1 200") == 2
        assert data.index(b'"list"') < data.index(b'"ok"')


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_pipelined_answers_without_bodies_are_not_held_back(method: str) -> None:
    with live_server(Setup()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        request = f"{method} /v1/models HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        raw.sendall(request * 3)
        data = b""
        while data.count(b"HTTP/1.1 20") < 3:
            part = raw.recv(4096)
            assert part
            data += part


def test_expect_continue_is_answered() -> None:
    with live_server(Setup()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        body = b'{"messages": [{"role": "user", "content": "hi"}]}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\n"
        raw.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
        assert raw.recv(4096).startswith(b"HTTP/1.1 100")
        raw.sendall(body)
        assert b"HTTP/1.1 200" in read_all(raw)


@pytest.mark.parametrize("num_pieces", [1, 3, 40])
@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_offers_of_another_protocol_are_declined_and_the_body_read(offer: str, num_pieces: int) -> None:
    """The JDK's HTTP client offers h2c with its first request on a connection."""
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: {offer}\r\n"
        f"http2-settings: AAMAAABkAAQAAP__\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    sent = head.encode() + body + last
    with live_server(Setup()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(sent) // num_pieces)
        for start in range(0, len(sent), size):
            raw.sendall(sent[start : start + size])
        received = read_all(raw)
        assert received.count(b"HTTP/1.1 200 OK") == 2
        assert b"Paris is the capital." in received
        assert received.endswith(b'{"status":"ok"}')


def test_connect_is_refused() -> None:
    with live_server(Setup()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n")
        received = read_all(raw)
        assert received.startswith(b"HTTP/1.1 405")
        assert b'"error"' in received


def test_full_queues_are_429_with_retry_after() -> None:
    setup = Setup(default=ENDLESS, scheduler=SchedulerConfig(max_num_seqs=1, max_waiting=1))
    with live_server(setup) as server:
        running = RawClient(server, stream=True)
        running.read_events(2)
        waiting = RawClient(server)
        server.wait_until(lambda: server.replica.num_waiting == 1, "queued")
        for streamed in (False, True):
            answer = server.chat("one too many", stream=streamed)
            assert answer.status_code == 429
            assert 1 <= int(answer.headers["retry-after"]) <= 120
            assert answer.json()["error"]["type"] == "overloaded_error"
        running.close()
        waiting.close()
        server.wait_until(server.is_idle, "both are gone")


def test_a_request_with_a_body_is_expected_from_its_first_bytes_on() -> None:
    with live_server(Setup()) as server:
        assert server.http.get("/health").status_code == 200 and server.num_expected == 0
        body = {"messages": [{"role": "user", "content": "go"}]}
        for number in range(1, 3):
            assert server.http.post(CHAT, json=body).status_code == 200
            assert server.num_expected == number
