"""LangChain's ChatOpenAI: what `langchain-openai` sends and reads."""

from __future__ import annotations

from typing import Any

import pytest

from api.live_server import LiveServer
from sdk import questions as q

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed (make test-sdk)")
messages = pytest.importorskip("langchain_core.messages")
tools = pytest.importorskip("langchain_core.tools")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

City = pydantic.create_model("City", name=(str, ...), population=(int, ...))


@tools.tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return q.WEATHER_RESULT


@pytest.fixture
def model(base_url: str) -> Any:
    return langchain_openai.ChatOpenAI(
        model=q.MODEL, base_url=base_url, api_key=q.KEY, max_retries=0, timeout=20, stream_usage=True
    )


def test_chat_and_stream_with_usage(model: Any) -> None:
    whole = model.invoke("hi")
    assert whole.content == q.ANSWER
    joined = None
    for chunk in model.stream("hi"):
        joined = chunk if joined is None else joined + chunk
    assert joined is not None and joined.content == q.ANSWER
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop(model: Any, streamed: bool) -> None:
    bound = model.bind_tools([get_weather])
    history: list[Any] = [messages.HumanMessage(q.WEATHER_QUESTION)]
    if streamed:
        first = None
        for chunk in bound.stream(history):
            first = chunk if first is None else first + chunk
        assert first is not None
        first = messages.AIMessage(first.content, tool_calls=first.tool_calls)
    else:
        first = bound.invoke(history)
    [call] = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    history += [first, get_weather.invoke(call)]
    assert bound.invoke(history).content == q.WEATHER_ANSWER


def test_structured_output_by_schema(model: Any) -> None:
    assert model.with_structured_output(City).invoke(q.JSON_QUESTION).model_dump() == q.CITY


def test_overflow_has_its_code(model: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        model.invoke(q.TOO_LONG)
    assert refused.value.code == "context_length_exceeded"


def test_leaving_cancels(model: Any, server: LiveServer) -> None:
    stream = model.stream(q.LONG_QUESTION)
    next(stream)
    stream.close()
    server.wait_until(server.is_idle, "cancelled", 2)
