"""Server-sent events and the few OpenAI fields that a load client reads. Source: WHATWG HTML, "Server-sent events"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


class EventSplitter:
    """Turns arbitrary byte pieces into event payloads; accepts LF and CRLF line ends and skips comments."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def push(self, piece: bytes) -> Iterator[bytes]:
        """Payloads completed by `piece`."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()


class PromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = 0


class Promise(msgspec.Struct):
    """`usage.twinpath`: what a twinpath server predicted at arrival, and what it came to by its own clock."""

    lane: str | None = None
    predicted_ttft_ms: float | None = None
    ttft_ms: float | None = None


class UsageCounts(msgspec.Struct):
    """`usage`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    twinpath: Promise | None = None


class Delta(msgspec.Struct):
    """`choices[].delta` or `choices[].message`."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    """One choice of a chat or text completion, streamed or whole."""

    text: str | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        """New text of this choice, from whichever field holds it."""
        if self.text:
            return self.text
        part = self.delta or self.message
        return "" if part is None else (part.content or part.reasoning_content or "")


class Completion(msgspec.Struct):
    """A chunk of a stream or a whole response: the fields the client reads; others are ignored."""

    choices: list[Choice] = []
    usage: UsageCounts | None = None
    error: Any = None


decode_completion = msgspec.json.Decoder(Completion).decode
