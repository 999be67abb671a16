"""Windows, pools, bodies, connections: what is too large is refused at once and recognisably."""

from __future__ import annotations

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from api.streams import both
from api.test_bad_input import CHAT, COMPLETIONS, refusal
from twinpath.engine.scripted import Script, ScriptedShape


@pytest.fixture
def small(request: pytest.FixtureRequest) -> Any:
    """A server with a 400-token window."""
    with live_server(Setup(shape=ScriptedShape(max_model_len=400), http={"max_body_bytes": 4096})) as server:
        yield server


def overflow(server: LiveServer, path: str, num_chars: int, **fields: Any) -> dict[str, Any]:
    prompt = "p" * num_chars
    body = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return refusal(server.post(path, {**body, **fields}))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("streamed", [False, True])
def test_b1_11_over_long_prompts_are_recognisable(small: LiveServer, path: str, streamed: bool) -> None:
    error = overflow(small, path, 600, stream=streamed)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == ("messages" if path == CHAT else "prompt")
    # Chat adds begin, user, end and assistant markers.
    num_prompt = 604 if path == CHAT else 600
    assert "This model's maximum context length is 400 tokens" in error["message"]
    assert str(num_prompt) in error["message"]
    assert "rate limit" not in error["message"]


def test_the_last_prompt_that_fits_answers_with_one_token(small: LiveServer) -> None:
    assert small.complete("p" * 400).status_code == 400
    answer = small.complete("p" * 399).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("streamed", [False, True])
def test_text_that_can_never_fit_is_refused_before_it_is_encoded(streamed: bool) -> None:
    """Encoding 30 MB takes seconds and gigabytes."""
    text = "p" * (4 * 1024 * 1024)
    with live_server(Setup()) as server:
        for answer in (server.chat(text, stream=streamed), server.complete(text, stream=streamed)):
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert "4096 tokens" in error["message"] and "at least 8192 tokens" in error["message"]


def test_prompts_above_the_kv_pool_are_refused_at_once() -> None:
    shape = ScriptedShape(max_model_len=4096, num_pages=20, page_size=16)
    long = Script(match="[long]", text="x" * 150, step_ms=4.0)
    with live_server(Setup(shape=shape, scripts=(long,))) as server, ThreadPoolExecutor(1) as threads:
        running = threads.submit(both, server, "[long]")
        server.wait_until(lambda: server.replica.num_running == 1, "another one runs")
        for streamed in (False, True):
            error = overflow(server, CHAT, 1000, stream=streamed)
            assert error["code"] == "context_length_exceeded"
            assert "maximum context length is 320 tokens" in error["message"]
        assert server.chat("fits").status_code == 200
        assert running.result()[0].text == "x" * 150


def test_bodies_above_the_limit_are_413_before_they_are_read(small: LiveServer) -> None:
    answer = small.post(CHAT, b'{"messages": "' + b"x" * 10_000 + b'"}')
    assert "4096" in refusal(answer, 413)["message"]


def test_chunked_bodies_above_the_limit_are_413(small: LiveServer) -> None:
    with small.client() as client:
        answer = client.post(
            CHAT, content=(b"x" * 1000 for _ in range(10)), headers={"content-type": "application/json"}
        )
    refusal(answer, 413)


def test_a_declared_length_above_the_limit_is_answered_without_the_body(small: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", small.port), timeout=5) as raw:
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
        assert b" 413 " in raw.recv(4096)


def test_huge_headers_are_431_in_the_envelope(small: LiveServer) -> None:
    for head in (b"x-big: " + b"a" * 100_000 + b"\r\n", b"".join(b"x-%d: a\r\n" % n for n in range(300))):
        answer = raw_exchange(small.port, b"GET /health HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n")
        status, body = split(answer)
        assert status == 431
        assert json.loads(body)["error"]["message"]


def test_bytes_that_are_not_http_get_a_400_in_the_envelope(small: LiveServer) -> None:
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        status, body = split(raw_exchange(small.port, junk))
        assert status == 400
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_transfer_codings_other_than_chunked_are_501_in_the_envelope(small: LiveServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    chunked = b'\r\n13\r\n{"prompt": "plain"}\r\n0\r\n\r\n'
    for codings in (b"gzip, chunked", b"gzip\r\ntransfer-encoding: chunked"):
        status, body = split(raw_exchange(small.port, head + b"transfer-encoding: " + codings + b"\r\n" + chunked))
        assert status == 501
        assert "chunked" in json.loads(body)["error"]["message"]
    plain = head + b"connection: close\r\ntransfer-encoding: Chunked\r\n" + chunked
    assert split(raw_exchange(small.port, plain))[0] == 200


@pytest.mark.parametrize(("hosts", "status"), [(b"", 400), (b"host: a\r\nhost: b\r\n", 400), (b"host: a\r\n", 200)])
def test_http_1_1_has_one_host(small: LiveServer, hosts: bytes, status: int) -> None:
    answer = raw_exchange(small.port, b"GET /health HTTP/1.1\r\nconnection: close\r\n" + hosts + b"\r\n")
    assert split(answer)[0] == status and b"x-request-id: " in answer


def test_http_1_0_gets_no_chunks(small: LiveServer) -> None:
    """A stream ends with its connection; whole answers and refusals say their length."""
    for streamed, max_tokens, expected in ((True, 3, 200), (False, 3, 200), (True, 0.5, 400)):
        body = json.dumps({"prompt": "hi", "stream": streamed, "max_tokens": max_tokens}).encode()
        head = b"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        answer = raw_exchange(small.port, head % len(body) + body)
        status, text = split(answer)
        fields = answer.partition(b"\r\n\r\n")[0].lower()
        assert status == expected
        assert b"transfer-encoding" not in fields and b"connection: close" in fields
        if streamed and status == 200:
            assert b"content-length" not in fields
            assert text.startswith(b"data: {") and text.endswith(b"data: [DONE]\n\n")
        else:
            assert b"content-length: %d" % len(text) in fields
            json.loads(text)


def test_connections_above_the_limit_hear_a_503() -> None:
    with live_server(Setup(http={"max_connections": 3})) as server:
        assert server.chat().status_code == 200  # One connection is the test client's own.
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(2)]
        server.wait_until(lambda: len(server.server.server_state.connections) >= 3, "connections are counted")
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as extra:
            status, body = split(read_all(extra))
            assert status == 503
            assert "connections" in json.loads(body)["error"]["message"]
        for connection in held:
            connection.close()
        server.wait_until(lambda: len(server.server.server_state.connections) <= 1, "connections are given back")
        assert server.chat().status_code == 200


def raw_exchange(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.sendall(request)
        return read_all(raw)


def read_all(raw: socket.socket) -> bytes:
    data = b""
    try:
        while part := raw.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def split(answer: bytes) -> tuple[int, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body
