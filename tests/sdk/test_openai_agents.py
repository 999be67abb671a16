"""The OpenAI Agents SDK, over both of its APIs: Responses (its default) and chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.live_server import LiveServer
from sdk import questions as q

agents = pytest.importorskip("agents", reason="openai-agents is not installed (make test-sdk)")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

City = pydantic.create_model("City", name=(str, ...), population=(int, ...))
APIS = ("responses", "chat")


@agents.function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city == "Paris"
    return q.WEATHER_RESULT


@pytest.fixture(params=APIS)
async def model(request: pytest.FixtureRequest, base_url: str) -> AsyncIterator[Any]:
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=base_url, api_key=q.KEY, max_retries=0, timeout=20) as client:
        kind = agents.OpenAIResponsesModel if request.param == "responses" else agents.OpenAIChatCompletionsModel
        yield kind(model=q.MODEL, openai_client=client)


async def test_an_agent_answers_with_usage(model: Any) -> None:
    result = await agents.Runner.run(agents.Agent(name="a", instructions="Be brief.", model=model), "hi")
    assert result.final_output == q.ANSWER
    usage = result.context_wrapper.usage
    assert usage.output_tokens == len(q.ANSWER) + 1 and usage.input_tokens > 0


async def test_a_stream_joins_to_the_answer(model: Any) -> None:
    result = agents.Runner.run_streamed(agents.Agent(name="a", model=model), "hi")
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == q.ANSWER == result.final_output
    if isinstance(model, agents.OpenAIResponsesModel):
        assert result.context_wrapper.usage.output_tokens == len(q.ANSWER) + 1


async def test_a_stream_of_chat_has_its_usage_when_asked(model: Any) -> None:
    agent = agents.Agent(name="a", model=model, model_settings=agents.ModelSettings(include_usage=True))
    result = agents.Runner.run_streamed(agent, "hi")
    async for _ in result.stream_events():
        pass
    assert result.context_wrapper.usage.output_tokens == len(q.ANSWER) + 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_loop(model: Any, streamed: bool) -> None:
    agent = agents.Agent(name="a", model=model, tools=[get_weather])
    if streamed:
        running = agents.Runner.run_streamed(agent, q.WEATHER_QUESTION)
        async for _ in running.stream_events():
            pass
        assert running.final_output == q.WEATHER_ANSWER
    else:
        assert (await agents.Runner.run(agent, q.WEATHER_QUESTION)).final_output == q.WEATHER_ANSWER


async def test_structured_output(model: Any) -> None:
    agent = agents.Agent(name="a", model=model, output_type=City)
    result = await agents.Runner.run(agent, q.JSON_QUESTION)
    assert result.final_output.model_dump() == q.CITY


async def test_overflow_has_its_code(model: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await agents.Runner.run(agents.Agent(name="a", model=model), q.TOO_LONG)
    assert refused.value.code == "context_length_exceeded"


async def test_cancelling_a_run_cancels_the_request(model: Any, server: LiveServer) -> None:
    result = agents.Runner.run_streamed(agents.Agent(name="a", model=model), q.LONG_QUESTION)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            result.cancel()
    server.wait_until(server.is_idle, "cancelled", 2)
