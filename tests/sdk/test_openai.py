"""The `openai` client: chat completions and responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.live_server import LiveServer
from sdk import questions as q

openai = pytest.importorskip("openai", reason="openai is not installed (make test-sdk)")

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
HELLO: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(base_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=base_url, api_key=q.KEY, max_retries=0, timeout=20) as client:
        yield client


def test_chat_and_stream_with_usage(client: Any) -> None:
    whole = client.chat.completions.create(model=q.MODEL, messages=HELLO)
    assert whole.choices[0].message.content == q.ANSWER
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=q.MODEL, messages=HELLO, stream=True, stream_options=options))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == q.ANSWER
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop(client: Any, streamed: bool) -> None:
    messages: Any = [{"role": "user", "content": q.WEATHER_QUESTION}]
    asked = {"model": q.MODEL, "tools": [TOOL]}
    if streamed:
        with client.chat.completions.stream(messages=messages, **asked) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [
        choice.message.model_dump(exclude_none=True, exclude={"parsed"}),
        {"role": "tool", "tool_call_id": call.id, "content": q.WEATHER_RESULT},
    ]
    assert client.chat.completions.create(messages=messages, **asked).choices[0].message.content == q.WEATHER_ANSWER


def test_structured_output(client: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    city = pydantic.create_model("City", name=(str, ...), population=(int, ...))
    question: Any = [{"role": "user", "content": q.JSON_QUESTION}]
    parsed = client.chat.completions.parse(model=q.MODEL, messages=question, response_format=city)
    assert parsed.choices[0].message.parsed.model_dump() == q.CITY
    response = client.responses.parse(model=q.MODEL, input=q.JSON_QUESTION, text_format=city)
    assert response.output_parsed.model_dump() == q.CITY


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_of_responses(client: Any, streamed: bool) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}
    asked = {"model": q.MODEL, "tools": [tool]}
    if streamed:
        with client.responses.stream(input=q.WEATHER_QUESTION, **asked) as events:
            kinds = [event.type for event in events]
            first = events.get_final_response()
        assert "response.function_call_arguments.done" in kinds
    else:
        first = client.responses.create(input=q.WEATHER_QUESTION, **asked)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Paris"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": q.WEATHER_RESULT}
    second = client.responses.create(input=[result], previous_response_id=first.id, **asked)
    assert second.output_text == q.WEATHER_ANSWER
    in_full: Any = [{"role": "user", "content": q.WEATHER_QUESTION}, *first.output, result]
    assert client.responses.create(input=in_full, store=False, **asked).output_text == q.WEATHER_ANSWER


def test_overflow_has_its_code(client: Any) -> None:
    too_long: Any = [{"role": "user", "content": q.TOO_LONG}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=q.MODEL, messages=too_long)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=q.MODEL, input=q.TOO_LONG)
    assert refused.value.code == "context_length_exceeded"


def test_leaving_cancels(client: Any, server: LiveServer) -> None:
    messages: Any = [{"role": "user", "content": q.LONG_QUESTION}]
    with client.chat.completions.create(model=q.MODEL, messages=messages, stream=True) as stream:
        next(stream)
    server.wait_until(server.is_idle, "cancelled", 2)
    with client.responses.create(model=q.MODEL, input=q.LONG_QUESTION, stream=True) as stream:
        next(stream)
    server.wait_until(server.is_idle, "cancelled", 2)
