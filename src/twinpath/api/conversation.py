"""Chat messages as the schema has them -> the plain dicts that `twinpath.text` renders."""

from __future__ import annotations

from typing import Any

import msgspec

from twinpath.api.schemas import MAX_PARTS, MAX_TOOL_CALLS, ChatMessage
from twinpath.errors import InvalidRequest


def to_turns(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Checked messages; a legacy `function_call` becomes a tool call.

    Raises: InvalidRequest naming the content part that has no text, what there is too much of, or that it is too deep.
    """
    _check_counts(messages)
    for index, message in enumerate(messages):
        if isinstance(message.content, list):
            for position, part in enumerate(message.content):
                if (part.refusal if part.type == "refusal" else part.text) is None:
                    param = f"messages[{index}].content[{position}]"
                    raise InvalidRequest(f"'{param}' has no text.", param=param)
    try:
        return [_to_turn(message) for message in messages]
    except RecursionError:
        raise InvalidRequest("'messages' are nested too deeply.", param="messages") from None


def _check_counts(messages: list[ChatMessage]) -> None:
    num_calls = sum(len(message.tool_calls or ()) for message in messages)
    num_parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    for count, most, what in ((num_calls, MAX_TOOL_CALLS, "tool calls"), (num_parts, MAX_PARTS, "content parts")):
        if count > most:
            message = f"'messages' hold {count} {what} in all; at most {most} are accepted."
            raise InvalidRequest(message, param="messages")


def _to_turn(message: ChatMessage) -> dict[str, Any]:
    turn: dict[str, Any] = msgspec.to_builtins(message)
    call = turn.pop("function_call", None)
    if call is not None:
        turn["tool_calls"] = [*(turn.get("tool_calls") or ()), {"type": "function", "function": call}]
    return turn
