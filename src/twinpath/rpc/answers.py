"""Pieces of an answer -> protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twinpath.api.logprobs import finite
from twinpath.api.turn import Piece, Turn
from twinpath.rpc import wire
from twinpath.text.answer import Part, ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCallStart
from twinpath.types import TokenLogprob


def generate_response(index: int, pieces: Iterable[Piece]) -> Any:
    """Several pieces of one answer as one message."""
    response = wire.GenerateResponse(index=index)
    texts = []
    for piece in pieces:
        response.token_ids.extend(piece.token_ids)
        response.logprobs.extend(map(_logprob, piece.logprobs or ()))
        texts.append(piece.text)
    response.text = "".join(texts)
    return response


def chat_response(pieces: Iterable[Piece]) -> Any:
    """Several pieces of one turn as one message; neighbours of one kind are one part."""
    response = wire.ChatResponse()
    for piece in pieces:
        for part in piece.parts:
            _add(response.parts, part)
        response.logprobs.extend(map(_logprob, piece.logprobs or ()))
    return response


def finish(turn: Turn) -> Any:
    """What ends a finished turn."""
    usage = turn.stats.usage
    return wire.Finish(
        reason=turn.finish_reason,
        stop=turn.matched_stop,
        usage=wire.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=turn.stats.num_reasoning,
        ),
    )


def _add(parts: Any, part: Part) -> None:
    last: Any = parts[-1] if len(parts) else None
    kind = last.WhichOneof("part") if len(parts) else None
    if isinstance(part, TextDelta):
        if kind == "text":
            last.text += part.text
        else:
            parts.add(text=part.text)
    elif isinstance(part, ReasoningDelta):
        if kind == "reasoning":
            last.reasoning += part.text
        else:
            parts.add(reasoning=part.text)
    elif isinstance(part, ToolCallStart):
        parts.add().tool_call.MergeFrom(wire.ToolCallStart(index=part.index, id=part.call_id, name=part.name))
    elif isinstance(part, ToolArgumentsDelta):
        if kind == "tool_arguments" and last.tool_arguments.index == part.index:
            last.tool_arguments.text += part.text
        else:
            parts.add().tool_arguments.MergeFrom(wire.ToolArguments(index=part.index, text=part.text))


def _logprob(item: TokenLogprob) -> Any:
    top = [wire.TopLogprob(token_id=token_id, logprob=finite(logprob)) for token_id, logprob in item.top]
    return wire.TokenLogprob(token_id=item.token_id, logprob=finite(item.logprob), top=top)
