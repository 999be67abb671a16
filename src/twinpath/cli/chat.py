"""`twinpath chat`: a conversation in the terminal over the same HTTP API that every other client uses."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from twinpath.errors import UserError

START_TIMEOUT_S = 3600.0  # the first start may download a model; the server's own progress bar shows
STOP_TIMEOUT_S = 10.0
HELP = "/reset forgets the conversation, /exit leaves. Ctrl-C stops an answer, Ctrl-D leaves."


@dataclass(slots=True)
class Conversation:
    """The messages so far; the system prompt survives a reset."""

    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})


class ChatClient:
    """Streams answers from an OpenAI-compatible server. One connection per answer: closing it cancels the answer."""

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = urlsplit(url if "://" in url else f"http://{url}")
        if self.url.scheme not in ("http", "https") or not self.url.hostname:
            raise UserError(f"--url {url}: not an http address")
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def path(self, path: str) -> str:
        """`path` below the address, which may itself end in /v1."""
        return self.url.path.rstrip("/").removesuffix("/v1") + path

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        assert self.url.hostname is not None
        return kind(self.url.hostname, self.url.port, timeout=timeout_s)

    def is_ready(self) -> bool:
        with contextlib.closing(self.connect(2.0)) as connection:
            try:
                connection.request("GET", self.path("/health/ready"), headers=self.headers)
                return connection.getresponse().status == 200
            except OSError:
                return False

    def model(self) -> str:
        """The first model that the server lists."""
        with contextlib.closing(self.connect(10.0)) as connection:
            answer = self.request(connection, "GET", "/v1/models", None)
            return str(json.load(answer)["data"][0]["id"])

    def answer(self, body: dict[str, Any]) -> Iterator[str]:
        """Pieces of the answer as they arrive. Raises UserError with the server's words when it refuses or fails."""
        with contextlib.closing(self.connect(600.0)) as connection:
            reply = self.request(connection, "POST", "/v1/chat/completions", body)
            for raw in reply:
                line = raw.decode("utf-8").strip()
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                yield from piece_of(json.loads(data))
        raise UserError("the server closed the stream before the answer was complete")

    def request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None
    ) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, self.path(path), body=payload, headers=self.headers)
            reply = connection.getresponse()
        except OSError as error:
            raise UserError(f"no server at {self.url.geturl()}: {error.strerror or error}") from error
        if reply.status != 200:
            raise UserError(error_text(reply.status, reply.read()))
        return reply


def piece_of(chunk: dict[str, Any]) -> Iterator[str]:
    if "error" in chunk:
        raise UserError(str(chunk["error"].get("message", chunk["error"])))
    for choice in chunk.get("choices", ()):
        content = choice.get("delta", {}).get("content")
        if content:
            yield content


def error_text(status: int, body: bytes) -> str:
    try:
        return f"{json.loads(body)['error']['message']} (HTTP {status})"
    except (ValueError, KeyError, TypeError):
        return f"the server answered HTTP {status}"


@contextlib.contextmanager
def own_server(model: str) -> Iterator[str]:
    """Start `twinpath serve` for this chat on a free loopback port; yields its address and ends it afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "twinpath", "serve", model, "--port", str(port), "--log-level", "warning"]
    # Its own session: Ctrl-C in this terminal stops an answer, not the server. The pipe ends with us, even by SIGKILL.
    server = subprocess.Popen([*command, "--until-eof"], start_new_session=True, stdin=subprocess.PIPE)
    assert server.stdin is not None
    url = f"http://127.0.0.1:{port}"
    try:
        client = ChatClient(url)
        give_up = time.monotonic() + START_TIMEOUT_S
        while not client.is_ready():
            if server.poll() is not None:
                # The server has already said why.
                raise SystemExit(server.returncode or 1)
            if time.monotonic() > give_up:
                raise UserError(f"the server was not ready within {START_TIMEOUT_S:.0f} s")
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.stdin.close()
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def run_chat(model: str, url: str | None, *, api_key: str, system: str | None, max_tokens: int | None) -> int:
    """Run the conversation until Ctrl-D or /exit."""
    with contextlib.ExitStack() as stack:
        address = url or stack.enter_context(own_server(model))
        client = ChatClient(address, api_key)
        options: dict[str, Any] = {"model": client.model(), "stream": True}
        if max_tokens is not None:
            options["max_tokens"] = max_tokens
        console = Console()
        console.print(f"[bold]{options['model']}[/bold] at {address}. {HELP}", highlight=False)
        converse(client, Conversation(system), options, console)
    return 0


def converse(client: ChatClient, conversation: Conversation, options: dict[str, Any], console: Console) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  line editing and history for input()
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:
            console.print()
            continue
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            console.print(HELP, highlight=False)
        elif line:
            take_turn(client, conversation, options, line)


def take_turn(client: ChatClient, conversation: Conversation, options: dict[str, Any], line: str) -> None:
    """One question and its answer. An answer cut by Ctrl-C stays in the history as far as it came."""
    conversation.add("user", line)
    pieces: list[str] = []
    try:
        for piece in client.answer({**options, "messages": conversation.messages}):
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    except (UserError, OSError, http.client.HTTPException) as error:
        print(f"\ntwinpath: {error}", file=sys.stderr)
        if not pieces:
            conversation.messages.pop()
            return
    sys.stdout.write("\n")
    conversation.add("assistant", "".join(pieces))
