"""LlamaIndex's OpenAILike. It needs openai < 3 and the Agents SDK >= 3: `make test-sdk` gives it an environment of its
own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.live_server import LiveServer
from sdk import questions as q

openai_like = pytest.importorskip(
    "llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed (it wants openai < 3)"
)
core = pytest.importorskip("llama_index.core.llms")
tools = pytest.importorskip("llama_index.core.tools")
openai = pytest.importorskip("openai")


def get_weather(city: str) -> str:
    """The weather in a city."""
    return q.WEATHER_RESULT


@pytest.fixture
def llm(base_url: str) -> Any:
    return openai_like.OpenAILike(
        model=q.MODEL,
        api_base=base_url,
        api_key=q.KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=4096,
        max_retries=0,
        timeout=20,
    )


def user(text: str) -> Any:
    return core.ChatMessage(role="user", content=text)


def test_chat_stream_and_completion(llm: Any) -> None:
    assert llm.chat([user("hi")]).message.content == q.ANSWER
    chunks = list(llm.stream_chat([user("hi")], stream_options={"include_usage": True}))
    assert "".join(chunk.delta or "" for chunk in chunks) == q.ANSWER
    [usage] = [chunk.raw.usage for chunk in chunks if getattr(chunk.raw, "usage", None)]
    assert usage.completion_tokens == len(q.ANSWER) + 1
    assert llm.complete("hi").text == q.ANSWER


def test_a_tool_loop(llm: Any) -> None:
    weather = tools.FunctionTool.from_defaults(get_weather)
    first = llm.chat_with_tools([weather], user_msg=q.WEATHER_QUESTION)
    [call] = llm.get_tool_calls_from_response(first)
    assert call.tool_kwargs == {"city": "Paris"}
    result = core.ChatMessage(role="tool", content=q.WEATHER_RESULT, additional_kwargs={"tool_call_id": call.tool_id})
    assert llm.chat([user(q.WEATHER_QUESTION), first.message, result]).message.content == q.WEATHER_ANSWER


def test_structured_output(llm: Any) -> None:
    schema = {"name": "city", "strict": True, "schema": q.CITY_SCHEMA}
    answer = llm.chat([user(q.JSON_QUESTION)], response_format={"type": "json_schema", "json_schema": schema})
    assert json.loads(answer.message.content) == q.CITY


def test_overflow_has_its_code(llm: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        llm.chat([user(q.TOO_LONG)])
    assert refused.value.code == "context_length_exceeded"


def test_leaving_cancels(llm: Any, server: LiveServer) -> None:
    stream = llm.stream_chat([user(q.LONG_QUESTION)])
    next(stream)
    stream.close()
    server.wait_until(server.is_idle, "cancelled", 2)
