"""pydantic-ai with its OpenAI chat model."""

from __future__ import annotations

from typing import Any

import pytest

from api.live_server import LiveServer
from sdk import questions as q

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed (make test-sdk)")
models = pytest.importorskip("pydantic_ai.models.openai")
providers = pytest.importorskip("pydantic_ai.providers.openai")
exceptions = pytest.importorskip("pydantic_ai.exceptions")
pydantic = pytest.importorskip("pydantic")

City = pydantic.create_model("City", name=(str, ...), population=(int, ...))


@pytest.fixture
def model(base_url: str) -> Any:
    return models.OpenAIChatModel(q.MODEL, provider=providers.OpenAIProvider(base_url=base_url, api_key=q.KEY))


async def test_chat_and_stream_with_usage(model: Any) -> None:
    agent = pydantic_ai.Agent(model)
    assert (await agent.run("hi")).output == q.ANSWER
    async with agent.run_stream("hi") as result:
        assert await result.get_output() == q.ANSWER
        usage = result.usage() if callable(result.usage) else result.usage
        assert usage.output_tokens == len(q.ANSWER) + 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_loop(model: Any, streamed: bool) -> None:
    agent = pydantic_ai.Agent(model)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        assert city == "Paris"
        return q.WEATHER_RESULT

    if streamed:
        async with agent.run_stream(q.WEATHER_QUESTION) as result:
            assert await result.get_output() == q.WEATHER_ANSWER
    else:
        assert (await agent.run(q.WEATHER_QUESTION)).output == q.WEATHER_ANSWER


async def test_structured_output(model: Any) -> None:
    agent = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(City))
    assert (await agent.run(q.JSON_QUESTION)).output.model_dump() == q.CITY


async def test_overflow_says_what_it_is(model: Any) -> None:
    with pytest.raises(exceptions.ModelHTTPError, match="context_length_exceeded") as refused:
        await pydantic_ai.Agent(model).run(q.TOO_LONG)
    assert refused.value.status_code == 400


async def test_leaving_cancels(model: Any, server: LiveServer) -> None:
    async with pydantic_ai.Agent(model).run_stream(q.LONG_QUESTION) as result:
        async for _ in result.stream_text():
            break
    server.wait_until(server.is_idle, "cancelled", 2)
