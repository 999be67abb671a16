"""Chat messages as clients send them -> the plain dicts that chat templates read.

Content parts are joined with a newline; null is ""; developer is system; leading system messages become one. A conversation that the
template refuses is tried once more in the strict form (`fold`), which every alternating template accepts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from twinpath.api.schemas import ChatMessage, FunctionCall, ToolCall
from twinpath.errors import InvalidRequest

Turn = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def to_turns(messages: list[ChatMessage]) -> list[Turn]:
    """Messages -> template dicts.

    Raises: InvalidRequest naming the message, for an unknown role or a content part that is not text.
    """
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        turn = _to_turn(message, index)
        if turn["role"] == "system" and turns and all(earlier["role"] == "system" for earlier in turns):
            turns[0]["content"] = _joined(turns[0]["content"], turn["content"])
        else:
            turns.append(turn)
    return turns


def fold(turns: list[Turn]) -> list[Turn]:
    """The strict form: a system message after the first turn joins the next user message (so that the cached prefix stays as it is),
    and neighbours of one role become one turn."""
    folded: list[Turn] = []
    pending = ""
    for turn in turns:
        role, content = turn["role"], turn["content"]
        if role == "system" and folded:
            pending = _joined(pending, content)
            continue
        if pending:
            if role == "user":
                content = _joined(pending, content)
            else:
                _append(folded, {"role": "user", "content": pending})
            pending = ""
        _append(folded, {**turn, "content": content})
    if pending:
        _append(folded, {"role": "user", "content": pending})
    return folded


def _append(turns: list[Turn], turn: Turn) -> None:
    last = turns[-1] if turns else None
    if last is not None and last["role"] == turn["role"] == "user":
        turns[-1] = {**last, "content": _joined(last["content"], turn["content"])}
    else:
        turns.append(turn)


def _to_turn(message: ChatMessage, index: int) -> Turn:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            f"'messages[{index}].role' must be one of {', '.join(_ROLES)}.", param=f"messages[{index}].role"
        )
    turn: Turn = {"role": role, "content": _text(message, index)}
    if message.name is not None:
        turn["name"] = message.name
    if role == "tool" and message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if role == "assistant":
        calls = list(message.tool_calls or ())
        if message.function_call is not None:
            calls.append(ToolCall(function=message.function_call))
        if calls:
            turn["tool_calls"] = [_to_call(call) for call in calls]
        if reasoning := message.reasoning_content or message.reasoning:
            turn["reasoning_content"] = reasoning
    return turn


def _text(message: ChatMessage, index: int) -> str:
    content = message.content
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for position, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text") or part.text is None:
            param = f"messages[{index}].content[{position}]"
            raise InvalidRequest(
                f"'{param}' must be a text part with a 'text': this model reads text only.", param=param
            )
        texts.append(part.text)
    return "\n".join(texts)


def _to_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call.function)}
    rendered = {"type": "function", "function": function}
    return rendered if call.id is None else {"id": call.id, **rendered}


def _arguments(function: FunctionCall) -> Any:
    """An object when the text parses as one, else the text as it is: a model's own malformed JSON must not be refused or lost."""
    arguments = function.arguments
    if arguments is None:
        return {}
    if isinstance(arguments, dict):
        return arguments
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _joined(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first and second else first or second
