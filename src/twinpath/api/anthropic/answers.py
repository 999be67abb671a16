"""What /v1/messages answers: a whole message, or the events that build it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from twinpath.api.blocks import Block, Change, Closed, Grown, Opened
from twinpath.api.envelope import messages_envelope
from twinpath.api.sse import Manners, encode, event, quoted
from twinpath.api.turn import Turn
from twinpath.types import Usage

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
PING = event(b"ping", b'{"type":"ping"}')
MANNERS = Manners(done=b"", failed=lambda error: event(b"error", messages_envelope(error)), keep_alive=PING)
_EMPTY_OBJECT = Raw(b"{}")


class TextBlock(Struct, kw_only=True, tag="text"):
    """`type` is the tag, here and below."""

    text: str


class ThinkingBlock(Struct, kw_only=True, tag="thinking"):
    """`signature` is empty: nothing here is encrypted, and a replayed block is taken as it is."""

    thinking: str
    signature: str = ""


class ToolUseBlock(Struct, kw_only=True, tag="tool_use"):
    """`input` is the arguments as the model wrote them; empty when those are no JSON object."""

    id: str
    name: str
    input: Raw


class MessageUsage(Struct, kw_only=True):
    """`input_tokens` are those not found in the prefix cache: the three add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int

    @staticmethod
    def of(usage: Usage) -> MessageUsage:
        return MessageUsage(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )


class MessageAnswer(Struct, kw_only=True):
    """Body of a whole answer, and the `message` of a stream's first event."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Struct, kw_only=True):
    """Body of a /v1/messages/count_tokens answer."""

    input_tokens: int


def stop_reason(turn: Turn) -> StopReason:
    """Why a finished turn ended, in Anthropic's words."""
    if turn.finish_reason == "length":
        return "max_tokens"
    if turn.finish_reason == "stop":
        return "end_turn" if turn.matched_stop is None else "stop_sequence"
    return "tool_use"


def whole_message(turn: Turn, model_name: str, blocks: list[Block]) -> MessageAnswer:
    """A finished turn."""
    return MessageAnswer(
        id=turn.request.request_id,
        model=model_name,
        content=[_block_of(block) for block in blocks],
        stop_reason=stop_reason(turn),
        stop_sequence=turn.matched_stop,
        usage=MessageUsage.of(turn.stats.usage),
    )


def _block_of(block: Block) -> TextBlock | ThinkingBlock | ToolUseBlock:
    if block.kind == "text":
        return TextBlock(text=block.text)
    if block.kind == "reasoning":
        return ThinkingBlock(thinking=block.text)
    return ToolUseBlock(id=block.call_id, name=block.name, input=_input_of(block.text))


def _empty(block: Block) -> TextBlock | ThinkingBlock | ToolUseBlock:
    return _block_of(Block(block.index, block.kind, block.call_id, block.name))


def _input_of(arguments: str) -> Raw:
    """The clients' own rule for joined deltas is the same: what does not parse is no input."""
    try:
        return Raw(arguments.encode()) if isinstance(msgspec.json.decode(arguments), dict) else _EMPTY_OBJECT
    except (ValueError, RecursionError):
        return _EMPTY_OBJECT


def message_start(turn: Turn, model_name: str) -> bytes:
    """The first event; its usage is the prompt's."""
    message = MessageAnswer(
        id=turn.request.request_id,
        model=model_name,
        content=[],
        stop_reason=None,
        stop_sequence=None,
        usage=MessageUsage.of(turn.stats.usage),
    )
    return _named("message_start", message=message)


def change_event(change: Change) -> bytes:
    """One step of one block; text deltas, which come by the thousand, are put together by hand."""
    index = change.block.index
    if isinstance(change, Grown):
        head = _DELTA_HEADS[change.block.kind]
        return head[0] + b"%d" % index + head[1] + quoted(change.text) + b"}}\n\n"
    if isinstance(change, Opened):
        # Not the block itself: it may have grown since.
        return _named("content_block_start", index=index, content_block=_empty(change.block))
    assert isinstance(change, Closed)
    return _named("content_block_stop", index=index)


def message_end(turn: Turn) -> bytes:
    """The last two events."""
    delta = {"stop_reason": stop_reason(turn), "stop_sequence": turn.matched_stop}
    usage = MessageUsage.of(turn.stats.usage)
    return _named("message_delta", delta=delta, usage=usage) + _named("message_stop")


def _delta_head(delta_type: bytes, name: bytes) -> tuple[bytes, bytes]:
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":',
        b',"delta":{"type":"' + delta_type + b'","' + name + b'":',
    )


_DELTA_HEADS = {
    "text": _delta_head(b"text_delta", b"text"),
    "reasoning": _delta_head(b"thinking_delta", b"thinking"),
    "call": _delta_head(b"input_json_delta", b"partial_json"),
}


def _named(name: str, **fields: Any) -> bytes:
    return event(name.encode(), encode({"type": name, **fields}))
