"""smolagents' OpenAI model: content lists, `tool_choice: required`, usage read unguarded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.live_server import LiveServer
from sdk import questions as q

smolagents = pytest.importorskip("smolagents", reason="smolagents is not installed (make test-sdk)")
openai = pytest.importorskip("openai")


class GetWeather(smolagents.Tool):  # type: ignore[misc,name-defined]
    """As smolagents wants its tools."""

    name = "get_weather"
    description = "The weather in a city."
    inputs = {"city": {"type": "string", "description": "A city."}}  # noqa: RUF012
    output_type = "string"

    def forward(self, city: str) -> str:
        return q.WEATHER_RESULT


@pytest.fixture
def model(base_url: str) -> Any:
    return smolagents.OpenAIModel(model_id=q.MODEL, api_base=base_url, api_key=q.KEY, client_kwargs={"max_retries": 0})


def user(text: str) -> Any:
    return smolagents.ChatMessage(role="user", content=[{"type": "text", "text": text}])


def test_chat_and_stream_with_usage(model: Any) -> None:
    whole = model.generate([user("hi")])
    assert whole.content == q.ANSWER
    deltas = list(model.generate_stream([user("hi")]))
    assert "".join(delta.content or "" for delta in deltas) == q.ANSWER
    counted = [delta.token_usage for delta in deltas if delta.token_usage]
    assert counted[-1].output_tokens == whole.token_usage.output_tokens


def test_a_tool_call_is_demanded_by_default_and_valid(model: Any) -> None:
    answer = model.generate([user(q.WEATHER_QUESTION)], tools_to_call_from=[GetWeather()])
    [call] = answer.tool_calls
    arguments = call.function.arguments
    assert call.function.name == "get_weather"
    assert (json.loads(arguments) if isinstance(arguments, str) else arguments) == {"city": "Paris"}


def test_a_tool_loop(model: Any) -> None:
    """With the roles by which its agents replay a call and its result."""
    role = smolagents.models.MessageRole
    first = model.generate([user(q.WEATHER_QUESTION)], tools_to_call_from=[GetWeather()])
    called = [{"type": "text", "text": f"Calling tools: {[str(call.function) for call in first.tool_calls]}"}]
    result = [{"type": "text", "text": f"Observation:\n{q.WEATHER_RESULT}"}]
    turns = [
        user(q.WEATHER_QUESTION),
        smolagents.ChatMessage(role=role.TOOL_CALL, content=called),
        smolagents.ChatMessage(role=role.TOOL_RESPONSE, content=result),
    ]
    assert model.generate(turns).content == q.WEATHER_ANSWER


@pytest.mark.parametrize("streamed", [False, True])
def test_two_calls_at_once_stay_apart(model: Any, streamed: bool) -> None:
    if streamed:
        deltas = model.generate_stream([user(q.TWO_CITIES)], tools_to_call_from=[GetWeather()])
        calls = smolagents.models.agglomerate_stream_deltas(list(deltas)).tool_calls
    else:
        calls = model.generate([user(q.TWO_CITIES)], tools_to_call_from=[GetWeather()]).tool_calls
    arguments = [call.function.arguments for call in calls]
    assert [json.loads(a) if isinstance(a, str) else a for a in arguments] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert len({call.id for call in calls}) == 2


def test_structured_output(model: Any) -> None:
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "city", "strict": True, "schema": q.CITY_SCHEMA},
    }
    answer = model.generate([user(q.JSON_QUESTION)], response_format=response_format)
    assert json.loads(answer.content) == q.CITY


def test_stop_strings(model: Any) -> None:
    assert model.generate([user("hi")], stop_sequences=["cap"]).content == "Paris is the "


def test_overflow_has_its_code(model: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        model.generate([user(q.TOO_LONG)])
    assert refused.value.code == "context_length_exceeded"


def test_leaving_cancels(model: Any, server: LiveServer) -> None:
    stream = model.generate_stream([user(q.LONG_QUESTION)])
    next(stream)
    stream.close()
    server.wait_until(server.is_idle, "cancelled", 2)
