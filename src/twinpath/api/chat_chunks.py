"""Chunks of a chat stream. What stays the same is encoded once; a token costs a string escape and two joins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from twinpath.api.generation import Door
from twinpath.api.logprobs import chat_logprobs
from twinpath.api.ports import Tokenizer
from twinpath.api.responses import ChatLogprobs, UsageBody
from twinpath.api.schemas import StreamOptions
from twinpath.api.sse import encode, quoted
from twinpath.api.turn import Piece, Turn
from twinpath.text.answer import Part, ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCallStart
from twinpath.types import Usage

_EMPTY = b'"content":""'


@dataclass(slots=True)
class ChatChunks:
    """The chunks of one choice."""

    turn: Turn
    tokenizer: Tokenizer
    include_usage: bool
    continuous_usage: bool
    _head: bytes
    _delta_head: bytes
    _plain_tail: bytes

    @staticmethod
    def of(call_id: str, index: int, turn: Turn, door: Door, options: StreamOptions) -> ChatChunks:
        head = b'data: {"id":%s,"object":"chat.completion.chunk","created":%d,"model":%s,' % (
            quoted(call_id),
            int(time.time()),
            quoted(door.model_name),
        )
        include_usage = bool(options.include_usage)
        return ChatChunks(
            turn=turn,
            tokenizer=door.text.tokenizer,
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options.continuous_usage_stats),
            _head=head,
            _delta_head=head + b'"choices":[{"index":%d,"delta":{' % index,
            _plain_tail=b'},"logprobs":null,"finish_reason":null}]'
            + (b',"usage":null}\n\n' if include_usage else b"}\n\n"),
        )

    def role(self) -> bytes:
        """The first chunk."""
        return self._delta_head + b'"role":"assistant","content":""' + self._plain_tail

    def piece(self, piece: Piece) -> bytes:
        """A chunk for each part; the first one has the log-probabilities of the tokens behind the piece."""
        deltas = list(_deltas(piece.parts))
        if piece.logprobs is None and not self.continuous_usage:
            return b"".join([self._delta_head + delta + self._plain_tail for delta in deltas])
        scores = b"null"
        if piece.logprobs:
            num_top = self.turn.request.sampling.logprobs or 0
            scores = encode(ChatLogprobs(content=chat_logprobs(self.tokenizer, piece.logprobs, num_top)))
            deltas = deltas or [_EMPTY]
        chunks = []
        for delta in deltas:
            tail = b'},"logprobs":' + scores + b',"finish_reason":null}]' + self._usage_tail(b"}\n\n")
            chunks.append(self._delta_head + delta + tail)
            scores = b"null"
        return b"".join(chunks)

    def finish(self) -> bytes:
        """The chunk that ends the choice."""
        reason = quoted(self.turn.finish_reason)
        chunk = self._delta_head + b'},"logprobs":null,"finish_reason":' + reason + b"}]"
        return chunk + self._usage_tail(b"}\n\n")

    def usage(self, usages: list[Usage]) -> bytes:
        """The usage chunk of the whole call, when it was asked for."""
        if not self.include_usage:
            return b""
        return self._head + b'"choices":[],"usage":' + encode(UsageBody.of(usages)) + b"}\n\n"

    def _usage_tail(self, end: bytes) -> bytes:
        if self.continuous_usage:
            return b',"usage":' + encode(UsageBody.of([self.turn.stats.usage])) + end
        return b',"usage":null' + end if self.include_usage else end


def _deltas(parts: list[Part]) -> Iterator[bytes]:
    """What stands between the braces of `delta`. A call's name and id come once; its end is not said."""
    for part in parts:
        if isinstance(part, TextDelta):
            yield b'"content":' + quoted(part.text)
        elif isinstance(part, ReasoningDelta):
            text = quoted(part.text)
            yield b'"reasoning_content":' + text + b',"reasoning":' + text
        elif isinstance(part, ToolCallStart):
            call = b'{"index":%d,"id":%s,"type":"function","function":{"name":%s,"arguments":""}}'
            yield b'"tool_calls":[' + call % (part.index, quoted(part.call_id), quoted(part.name)) + b"]"
        elif isinstance(part, ToolArgumentsDelta):
            call = b'{"index":%d,"function":{"arguments":%s}}' % (part.index, quoted(part.text))
            yield b'"tool_calls":[' + call + b"]"
