"""The terminal client against a real socket that plays the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rich.console import Console

from twinpath.cli.chat import ChatClient, Conversation, converse
from twinpath.errors import UserError

DONE = "data: [DONE]\n\n"


def delta(text: str) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n"


class FakeServer(ThreadingHTTPServer):
    """Answers every POST with `stream` and keeps the bodies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.stream = ": keep-alive\n\n" + delta("Par") + delta("is") + 'data: {"choices": []}\n\n' + DONE


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        self.reply(200, json.dumps({"data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.reply(self.server.status, self.server.stream)

    def reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(server: FakeServer) -> ChatClient:
    return ChatClient(f"http://127.0.0.1:{server.server_address[1]}/v1")


def talk(client: ChatClient, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> Conversation:
    """Feed `lines` to the prompt, then Ctrl-D."""
    pending = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(pending)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    conversation = Conversation("Be brief.")
    converse(client, conversation, {"model": "tiny", "stream": True}, Console(quiet=True))
    return conversation


def test_answers_stream_and_history_is_sent(
    server: FakeServer, client: ChatClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(client, ["Capital of France?", "And again?"], monkeypatch)
    assert capsys.readouterr().out == "Paris\nParis\n"
    assert [message["content"] for message in server.bodies[1]["messages"]] == [
        "Be brief.",
        "Capital of France?",
        "Paris",
        "And again?",
    ]


def test_reset_keeps_the_system_prompt_only(
    server: FakeServer, client: ChatClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(client, ["one", "/reset", "two", "/exit", "three"], monkeypatch)
    assert len(server.bodies) == 2
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["Be brief.", "two"]


def test_error_event_is_shown_and_the_turn_forgotten(
    server: FakeServer, client: ChatClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.stream = 'data: {"error": {"message": "the engine was restarted"}}\n\n'
    conversation = talk(client, ["hello"], monkeypatch)
    assert "the engine was restarted" in capsys.readouterr().err
    assert [message["role"] for message in conversation.messages] == ["system"]


def test_refusal_carries_the_servers_words(server: FakeServer, client: ChatClient) -> None:
    server.status, server.stream = 401, '{"error": {"message": "wrong key"}}'
    with pytest.raises(UserError, match=r"wrong key \(HTTP 401\)"):
        list(client.answer({"messages": []}))


def test_cut_stream_is_an_error(server: FakeServer, client: ChatClient) -> None:
    server.stream = delta("Par")
    with pytest.raises(UserError, match="closed the stream"):
        list(client.answer({"messages": []}))


def test_no_server_is_one_line() -> None:
    with pytest.raises(UserError, match=r"no server at http://127\.0\.0\.1:1"):
        ChatClient("127.0.0.1:1").model()


def test_model_and_readiness(client: ChatClient) -> None:
    assert client.is_ready() and client.model() == "tiny"
