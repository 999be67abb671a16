"""Requests that never reach the app: their refusals carry what every answer does, and come in their turn."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from api.live_server import LiveServer, Setup, live_server
from twinpath.engine.scripted import Script

PAGE = "https://page.example"
SLOW = Script(match="[slow]", text="abcdefghij", step_ms=5.0)
ENDLESS = Script(match="[endless]", text="x" * 3000, step_ms=5.0)


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    with live_server(Setup(scripts=(SLOW, ENDLESS), http={"allowed_origins": (PAGE,)})) as server:
        yield server


def answers(server: LiveServer, *sent: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Status, headers and body of every answer on one connection, which the server must end."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        for data in sent:
            connection.sendall(data)
        reader = connection.makefile("rb")
        found = []
        while line := reader.readline():
            headers = {}
            while (header := reader.readline()) not in (b"\r\n", b""):
                name, _, value = header.decode().partition(":")
                headers[name.lower()] = value.strip()
            found.append((int(line.split()[1]), headers, reader.read(int(headers["content-length"]))))
        return found


def post(prompt: str) -> bytes:
    body = json.dumps({"prompt": prompt, "max_tokens": 3000}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


IDS = f"x-request-id: mine-1\r\norigin: {PAGE}\r\n".encode()
BAD_HEADS = [
    (b"FOO / HTTP/1.1\r\nhost: x\r\n" + IDS + b"\r\n", 501),
    (b"GET / HTTP/1.1\r\n" + IDS + b"\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: x\r\n" + IDS + b"broken header\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: x\r\n" + IDS + b"x-big: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    (b"POST / HTTP/1.1\r\nhost: x\r\n" + IDS + b"transfer-encoding: gzip\r\n\r\n", 501),
    (b"PUT / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + IDS + b"\r\n", 404),
    (b"PUT /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + IDS + b"\r\n", 405),
    (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-encoding: br\r\n" + IDS + b"\r\n", 415),
    (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 999999999\r\n"
        + IDS
        + b"\r\n",
        413,
    ),
]


@pytest.mark.parametrize(("head", "status"), BAD_HEADS)
def test_every_refusal_echoes_the_request_id_and_may_be_read_by_pages(
    shared: LiveServer, head: bytes, status: int
) -> None:
    [(found, headers, body)] = answers(shared, head)
    assert found == status
    assert headers["x-request-id"] == "mine-1"
    assert headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in headers["access-control-expose-headers"]
    assert json.loads(body)["error"]["message"]


def test_an_unknown_method_is_named_with_those_there_are(shared: LiveServer) -> None:
    [(_, _, body)] = answers(shared, b"FOO /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    message = json.loads(body)["error"]["message"]
    assert "'FOO'" in message and "POST" in message


def test_an_insane_id_is_not_echoed(shared: LiveServer) -> None:
    [(_, headers, _)] = answers(shared, b'FOO / HTTP/1.1\r\nx-request-id: a"b c\r\n\r\n')
    assert headers["x-request-id"].startswith("req_")


def test_under_messages_the_envelope_is_that_api_s(shared: LiveServer) -> None:
    for head in (b"FOO /v1/messages HTTP/1.1\r\n\r\n", b"POST /v1/messages HTTP/1.1\r\n\r\n"):
        [(_, _, body)] = answers(shared, head)
        assert json.loads(body)["type"] == "error"


@pytest.mark.parametrize(
    ("junk", "status"),
    [
        (b"FOO / HTTP/1.1\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (post("hi").replace(b"content-length", b"transfer-encoding: chunked\r\nx-was"), 400),
    ],
)
def test_a_refusal_waits_for_the_answers_before_it(shared: LiveServer, junk: bytes, status: int) -> None:
    first, second, last = answers(shared, post("[slow]") + post("hi") + junk)
    assert [first[0], second[0], last[0]] == [200, 200, status]
    assert json.loads(first[2])["choices"][0]["text"] == "abcdefghij"
    assert json.loads(second[2])["choices"][0]["text"] == "Paris is the capital."
    assert last[1]["connection"] == "close"


def test_a_client_that_pipelines_and_leaves_is_noticed(shared: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=20) as connection:
        connection.sendall(post("[endless]") * 3)
        shared.wait_until(lambda: shared.replica.num_running == 1, "the first runs")
    shared.wait_until(shared.is_idle, "all are ended", within_s=10)
