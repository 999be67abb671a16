"""Responses bodies become the chat request that means the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from twinpath.api.responses_api.convert import new_items, to_chat
from twinpath.api.responses_api.schemas import ResponsesRequest
from twinpath.api.schemas import ChatCompletionRequest
from twinpath.errors import InvalidRequest

USER = {"role": "user", "content": "hi"}


def chat_of(**body: Any) -> ChatCompletionRequest:
    fields = msgspec.json.decode(json.dumps({"input": "hi", **body}), type=ResponsesRequest)
    return to_chat(fields, new_items(fields))


def turns_of(items: Any, **body: Any) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = msgspec.to_builtins(chat_of(input=items, **body).messages)
    return [{key: value for key, value in turn.items() if value is not None} for turn in turns]


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments}


def test_text_is_a_user_message_after_the_instructions() -> None:
    assert turns_of("hi") == [USER]
    assert turns_of("hi", instructions="Be brief.") == [{"role": "system", "content": "Be brief."}, USER]


def test_parts_and_items_without_id_or_status_are_taken() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "c"}]},
        {"role": "user", "content": "d", "id": "msg_1", "status": "completed"},
    ]
    assert [(turn["role"], turn["content"]) for turn in turns_of(items)] == [
        ("developer", "a"),
        ("assistant", "bc"),
        ("user", "d"),
    ]


def test_reasoning_text_and_calls_in_a_row_are_one_turn() -> None:
    items = [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think"}]},
        {"role": "assistant", "content": "Looking."},
        call("c1", '{"x": 1}'),
        call("c2"),
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    ]
    _, turn, one, two, done, really = turns_of(items)
    assert turn["reasoning_content"] == "think" and turn["content"] == "Looking."
    assert [(c["id"], c["function"]["arguments"]) for c in turn["tool_calls"]] == [("c1", '{"x": 1}'), ("c2", "{}")]
    assert one == {"role": "tool", "content": "one", "tool_call_id": "c1"}
    assert two == {"role": "tool", "content": "two", "tool_call_id": "c2"}
    assert (done["content"], really["content"]) == ("Done.", "Really.")


def test_a_call_without_text_has_none() -> None:
    [_, turn] = turns_of([USER, call("c1")])
    assert "content" not in turn and len(turn["tool_calls"]) == 1


def test_tools_choices_and_formats_take_the_chat_shape() -> None:
    schema = {"type": "object"}
    chat = chat_of(
        tools=[{"type": "function", "name": "f", "parameters": schema, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "out", "schema": schema, "strict": True}},
    )
    function = {"name": "f", "parameters": schema, "strict": True}
    assert msgspec.json.decode(chat.tools) == [{"type": "function", "function": function}]
    assert msgspec.json.decode(chat.tool_choice) == {"type": "function", "function": {"name": "f"}}
    assert chat.parallel_tool_calls is False
    expected = {"type": "json_schema", "json_schema": {"name": "out", "schema": schema, "strict": True}}
    assert msgspec.json.decode(chat.response_format) == expected
    assert msgspec.json.decode(chat_of(tool_choice="required").tool_choice) == "required"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    assert msgspec.json.decode(chat_of(tool_choice=allowed).tool_choice) == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
    }


def test_log_probabilities_come_when_included() -> None:
    assert chat_of().logprobs is None
    assert chat_of(include=["reasoning.encrypted_content"]).logprobs is None
    asked = chat_of(include=["message.output_text.logprobs"], top_logprobs=3)
    assert (asked.logprobs, asked.top_logprobs) == (True, 3)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [USER, {"type": "item_reference", "id": "x"}]}, "input[1]"),
        ({"input": [USER, {"type": "function_call", "call_id": "c"}]}, "input[1].name"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 10_001}]}, "input"),
    ],
)
def test_what_is_not_served_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat_of(**body)
    assert refused.value.param == param


def test_effort_and_caps_are_the_chat_request_s() -> None:
    chat = chat_of(reasoning={"effort": "low"}, max_output_tokens=7, temperature=0.5, top_p=0.9, prompt_cache_key="k")
    assert (chat.reasoning_effort, chat.max_completion_tokens) == ("low", 7)
    assert (chat.temperature, chat.top_p, chat.prompt_cache_key) == (0.5, 0.9, "k")
