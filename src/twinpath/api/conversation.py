"""Chat messages as the schema has them -> the plain dicts that `twinpath.text` renders. What no text model can read is refused here."""

from __future__ import annotations

from typing import Any

import msgspec

from twinpath.api.schemas import ChatMessage, ContentPart
from twinpath.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def to_turns(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Checked messages; a legacy `function_call` becomes a tool call.

    Raises: InvalidRequest naming the message, for an unknown role or a content part that is not text.
    """
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            param = f"messages[{index}].role"
            raise InvalidRequest(f"'{param}' must be one of {', '.join(ROLES)}.", param=param)
        if isinstance(message.content, list):
            for position, part in enumerate(message.content):
                _check_part(part, f"messages[{index}].content[{position}]")
    return [_to_turn(message) for message in messages]


def num_chars(turns: list[dict[str, Any]]) -> int:
    """About how much text there is to render and encode."""
    return sum(64 + _content_chars(turn.get("content")) for turn in turns)


def _to_turn(message: ChatMessage) -> dict[str, Any]:
    turn: dict[str, Any] = msgspec.to_builtins(message)
    call = turn.pop("function_call", None)
    if call is not None:
        turn["tool_calls"] = [*(turn.get("tool_calls") or ()), {"type": "function", "function": call}]
    return turn


def _check_part(part: ContentPart, param: str) -> None:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in ("text", "input_text", "output_text", "refusal") or text is None:
        raise InvalidRequest(f"'{param}' must be a text part: this model reads text only.", param=param)


def _content_chars(content: Any) -> int:
    if isinstance(content, list):
        return sum(len(part.get("text") or "") for part in content)
    return len(content or "")
