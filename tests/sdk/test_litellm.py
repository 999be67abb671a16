"""LiteLLM's `hosted_vllm` provider, the one for servers of one's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.live_server import LiveServer
from sdk import questions as q

litellm = pytest.importorskip("litellm", reason="litellm is not installed (make test-sdk)")

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def ask(base_url: str) -> Any:
    def complete(text: str, history: Any = (), **fields: Any) -> Any:
        messages = [{"role": "user", "content": text}, *history]
        settings = {"api_base": base_url, "api_key": q.KEY, "timeout": 20, "num_retries": 0}
        return litellm.completion(model=f"hosted_vllm/{q.MODEL}", messages=messages, **settings, **fields)

    return complete


def test_chat_and_stream_with_usage(ask: Any) -> None:
    whole = ask("hi")
    assert whole.choices[0].message.content == q.ANSWER
    chunks = list(ask("hi", stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == q.ANSWER
    [usage] = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_a_tool_loop(ask: Any) -> None:
    message = ask(q.WEATHER_QUESTION, tools=[TOOL]).choices[0].message
    [call] = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": q.WEATHER_RESULT}
    again = ask(q.WEATHER_QUESTION, [message.model_dump(), result], tools=[TOOL])
    assert again.choices[0].message.content == q.WEATHER_ANSWER


def test_structured_output(ask: Any) -> None:
    schema = {"name": "city", "strict": True, "schema": q.CITY_SCHEMA}
    answer = ask(q.JSON_QUESTION, response_format={"type": "json_schema", "json_schema": schema})
    assert json.loads(answer.choices[0].message.content) == q.CITY


def test_overflow_is_recognised(ask: Any) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(q.TOO_LONG)


def test_leaving_cancels(ask: Any, server: LiveServer) -> None:
    stream = ask(q.LONG_QUESTION, stream=True)
    next(iter(stream))
    stream.completion_stream.close()
    server.wait_until(server.is_idle, "cancelled", 2)
