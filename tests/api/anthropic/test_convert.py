"""Messages bodies become the chat request that means the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from twinpath.api.anthropic.convert import to_chat
from twinpath.api.anthropic.schemas import MessagesRequest
from twinpath.api.schemas import ChatCompletionRequest
from twinpath.errors import InvalidRequest

CALL = {"type": "tool_use", "id": "toolu_1", "name": "run", "input": {"path": "C:\\Users"}}
USER = {"role": "user", "content": "hi"}


def chat_of(**body: Any) -> ChatCompletionRequest:
    return to_chat(msgspec.json.decode(json.dumps({"max_tokens": 9, "messages": [USER], **body}), type=MessagesRequest))


def turns_of(**body: Any) -> list[dict[str, Any]]:
    """The chat messages, without what is absent."""
    turns: list[dict[str, Any]] = msgspec.to_builtins(chat_of(**body).messages)
    return [{key: value for key, value in turn.items() if value is not None} for turn in turns]


def test_system_text_comes_first() -> None:
    assert turns_of(system="Be brief.") == [{"role": "system", "content": "Be brief."}, USER]
    blocks = [
        {"type": "text", "text": "One."},
        {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}},
    ]
    assert turns_of(system=blocks)[0] == {"role": "system", "content": "One.\n\nTwo."}
    assert turns_of(system=[]) == turns_of(system="") == [USER]


def test_the_billing_block_is_left_out_since_it_changes_every_time() -> None:
    blocks = [{"type": "text", "text": f"x-anthropic-billing-header: {n}"} for n in (1, 2)]
    rest = {"type": "text", "text": "You are an agent."}
    assert turns_of(system=[blocks[0], rest]) == turns_of(system=[blocks[1], rest]) == turns_of(system=[rest])


def test_a_tool_loop_keeps_calls_results_and_order() -> None:
    history = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look first.", "signature": "s"},
                {"type": "redacted_thinking", "data": "xx"},
                {"type": "text", "text": "Looking."},
                CALL,
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "two files"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    _, assistant, tool, user = turns_of(messages=history)
    assert assistant["content"] == "Looking." and assistant["reasoning_content"] == "Look first."
    [call] = assistant["tool_calls"]
    assert call["id"] == "toolu_1" and call["function"]["name"] == "run"
    assert json.loads(call["function"]["arguments"]) == {"path": "C:\\Users"}
    assert tool == {"role": "tool", "content": "two files", "tool_call_id": "toolu_1"}
    assert user == {"role": "user", "content": "And now?"}


def test_failed_and_empty_results_say_so() -> None:
    def result(**fields: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": "t", **fields}
        return str(turns_of(messages=[{"role": "user", "content": [block]}])[0]["content"])

    assert result(content="no such file", is_error=True) == "Error: no such file"
    assert result(is_error=True) == "Error: the tool failed"
    assert result() == result(content=[]) == ""


def test_an_assistant_turn_of_calls_alone_has_no_text() -> None:
    [_, assistant] = turns_of(messages=[USER, {"role": "assistant", "content": [CALL]}])
    assert "content" not in assistant
    assert turns_of(messages=[{"role": "user", "content": []}]) == [{"role": "user", "content": ""}]


def test_tools_and_choices_take_the_chat_shape() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    chat = chat_of(
        tools=[{"name": "f", "description": "d", "input_schema": schema}, {"name": "g", "type": "custom"}],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    )
    assert msgspec.json.decode(chat.tools) == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "g"}},
    ]
    assert msgspec.json.decode(chat.tool_choice) == {"type": "function", "function": {"name": "f"}}
    assert chat.parallel_tool_calls is False
    for kind, word in (("auto", "auto"), ("any", "required"), ("none", "none")):
        assert msgspec.json.decode(chat_of(tool_choice={"type": kind}).tool_choice) == word


def test_sampling_fields_keep_their_meaning() -> None:
    chat = chat_of(max_tokens=7, temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["x"], metadata={"user_id": "u"})
    assert (chat.max_tokens, chat.temperature, chat.top_p, chat.top_k) == (7, 0.5, 0.9, 4)
    assert chat.stop == ["x"] and chat.user == "u"


def test_structured_output_becomes_a_strict_schema() -> None:
    schema = {"type": "object"}
    chat = chat_of(output_config={"format": {"type": "json_schema", "schema": schema}})
    expected = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}
    assert msgspec.json.decode(chat.response_format) == expected


def test_thinking_is_the_chat_request_s() -> None:
    on, off = chat_of(thinking={"type": "enabled", "budget_tokens": 8}), chat_of(thinking={"type": "disabled"})
    assert on.thinking is not None and on.thinking.type == "enabled"
    assert off.thinking is not None and off.thinking.type == "disabled"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]},
            "messages[1].content[0].name",
        ),
        ({"system": [{"type": "document"}]}, "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 10_001}]}, "messages"),
    ],
)
def test_what_is_not_served_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat_of(**body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("role", "block", "param"),
    [
        ("assistant", {"type": "tool_use", "id": "a", "name": "f", "input": [1]}, "messages[0].content[0].input"),
        ("user", {"type": "tool_result", "content": "x"}, "messages[0].content[0].tool_use_id"),
    ],
)
def test_half_a_call_or_result_is_refused_by_its_place(role: str, block: dict[str, Any], param: str) -> None:
    body = {"max_tokens": 1, "messages": [{"role": role, "content": [block]}]}
    with pytest.raises(InvalidRequest) as refused:
        to_chat(msgspec.json.decode(msgspec.json.encode(body), type=MessagesRequest))
    assert refused.value.param == param
