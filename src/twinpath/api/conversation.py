"""Chat messages as the schema has them -> the plain dicts that `twinpath.text` renders."""

from __future__ import annotations

from typing import Any

import msgspec

from twinpath.api.schemas import ChatMessage
from twinpath.errors import InvalidRequest


def to_turns(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Checked messages; a legacy `function_call` becomes a tool call.

    Raises: InvalidRequest naming the content part that has no text.
    """
    for index, message in enumerate(messages):
        if isinstance(message.content, list):
            for position, part in enumerate(message.content):
                if (part.refusal if part.type == "refusal" else part.text) is None:
                    param = f"messages[{index}].content[{position}]"
                    raise InvalidRequest(f"'{param}' has no text.", param=param)
    return [_to_turn(message) for message in messages]


def _to_turn(message: ChatMessage) -> dict[str, Any]:
    turn: dict[str, Any] = msgspec.to_builtins(message)
    call = turn.pop("function_call", None)
    if call is not None:
        turn["tool_calls"] = [*(turn.get("tool_calls") or ()), {"type": "function", "function": call}]
    return turn
