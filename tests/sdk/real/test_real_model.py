"""Every client library against the default model: the same six things, judged by what must hold of any answer."""

from __future__ import annotations

from typing import Any

import pytest

from sdk.real import clients, frameworks
from sdk.real.clients import CITY_SCHEMA, NUM_TOKENS, PARAMETERS, Client
from sdk.real.conftest import RealServer

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed (make test-sdk-model)")
pytestmark = pytest.mark.model
KINDS: tuple[Any, ...] = (
    clients.OpenAI,
    clients.Anthropic,
    clients.LangChain,
    clients.LiteLLM,
    clients.LlamaIndex,
    clients.Smolagents,
    frameworks.AgentsSdk,
    frameworks.Responses,
    frameworks.PydanticAI,
    frameworks.AiSdk,
)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def client(request: pytest.FixtureRequest, real_server: RealServer) -> Client:
    found: Client = request.param(real_server.url)
    return found


def test_a_stream_is_the_whole_answer_with_its_usage(client: Client) -> None:
    whole, streamed = client.chat(), client.stream()
    assert "Paris" in whole.text and 0 < whole.num_tokens <= NUM_TOKENS
    assert streamed == whole


def test_a_tool_loop_of_two_turns(client: Client) -> None:
    arguments, answer = client.tool_turns()
    jsonschema.validate(arguments, PARAMETERS)
    assert answer.strip()


def test_structured_output(client: Client) -> None:
    jsonschema.validate(client.structured(), CITY_SCHEMA)


def test_overflow_has_its_own_class(client: Client) -> None:
    with pytest.raises(client.overflow) as refused:
        client.too_long()
    assert client.overflow_words in f"{getattr(refused.value, 'code', '')} {refused.value}"


def test_leaving_cancels(client: Client, real_server: RealServer) -> None:
    client.leave()
    real_server.wait_until_idle()
