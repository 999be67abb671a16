"""A 135M model behind Messages, Responses and gRPC: what is enforced holds, and the answers are the chat endpoint's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai
import pytest

from e2e.served import Served, serving

pytestmark = pytest.mark.model
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
QUESTION = "What is the weather like in Paris? Use celsius."
CAPITAL = "What is the capital of France?"


@pytest.fixture(scope="module")
def served(default_model_path: Path) -> Iterator[Served]:
    with serving(str(default_model_path), "--grpc-port", "0") as server:
        yield server


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="EMPTY", timeout=60, max_retries=0) as client:
        yield client


@pytest.fixture
def chat_text(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(
        model="", messages=[{"role": "user", "content": CAPITAL}], temperature=0, max_tokens=20
    )
    return answer.choices[0].message.content or ""


def test_messages_answer_as_chat_does_and_hold_calls_to_their_schema(served: Served, chat_text: str) -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    ask: dict[str, Any] = {"model": "", "max_tokens": 20, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=served.url, api_key="EMPTY", timeout=60, max_retries=0) as client:
        answer = client.messages.create(messages=[{"role": "user", "content": CAPITAL}], **ask)
        assert answer.content[0].text == chat_text
        tool = {"name": "get_weather", "input_schema": WEATHER}
        ask |= {"max_tokens": 200, "tools": [tool], "tool_choice": {"type": "any"}}
        with client.messages.stream(messages=[{"role": "user", "content": QUESTION}], **ask) as stream:
            message = stream.get_final_message()
    uses = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use" and uses
    for use in uses:
        jsonschema_rs.validate(WEATHER, use.input)


def test_responses_answer_as_chat_does_and_hold_calls_to_their_schema(client: openai.OpenAI, chat_text: str) -> None:
    answer = client.responses.create(model="", input=CAPITAL, temperature=0, max_output_tokens=20)
    assert answer.output_text == chat_text
    tool: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
    called = client.responses.create(model="", input=QUESTION, tools=[tool], tool_choice="required", temperature=0)
    calls = [item for item in called.output if item.type == "function_call"]
    assert calls
    for call in calls:
        jsonschema_rs.validate(WEATHER, json.loads(call.arguments))
    result: Any = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "18 degrees"}
    follow = client.responses.create(model="", input=[result], previous_response_id=called.id, max_output_tokens=30)
    assert follow.output_text


def test_grpc_answers_as_chat_does(served: Served, chat_text: str) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    from twinpath.rpc import wire

    address = served.wait_for(re.compile(r"gRPC on (\S+)")).group(1)
    with grpc.insecure_channel(address) as channel:
        chat = channel.stream_stream(
            f"/{wire.SERVICE}/Chat", wire.ChatRequest.SerializeToString, wire.ChatResponse.FromString
        )
        request = wire.ChatRequest(
            messages=[{"role": "user", "content": CAPITAL}], sampling={"temperature": 0.0, "max_tokens": 20}
        )
        responses = list(chat(iter([request]), timeout=60))
    assert "".join(part.text for response in responses for part in response.parts) == chat_text
    assert responses[-1].finish.usage.completion_tokens > 0
