"""The real `openai` client: a loop of two turns with a tool, whole and streamed, as agents do it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from api.live_server import MODEL, LiveServer, Setup, live_server
from twinpath.engine.scripted import Script

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
CALLS = "".join(
    f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
    for city in ("Oslo", "Zürich")
)
#: Results are in the prompt of the second turn only.
SCRIPTS = (
    Script(match="rain in Oslo", text="Rain in Oslo, sun in Zürich.", chunks=(4,)),
    Script(match="weather?", text="<think>Two cities.</think>I look." + CALLS, chunks=(1, 5)),
)
RESULTS = {"Oslo": "rain in Oslo", "Zürich": "sun in Zürich"}


@pytest.fixture(scope="module")
def loop_server() -> Iterator[LiveServer]:
    with live_server(Setup(scripts=SCRIPTS, tool_format="hermes", reasoning_format="think")) as server:
        yield server


@pytest.fixture
def client(loop_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{loop_server.url}/v1", api_key="EMPTY", timeout=10) as client:
        yield client


def answer_calls(message: Any) -> list[dict[str, Any]]:
    assert len({call.id for call in message.tool_calls}) == len(message.tool_calls)
    arguments = {call.id: json.loads(call.function.arguments) for call in message.tool_calls}
    return [{"role": "tool", "tool_call_id": i, "content": RESULTS[given["city"]]} for i, given in arguments.items()]


def test_two_turns_whole(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0]
    assert first.finish_reason == "tool_calls" and first.message.content == "I look."
    assert first.message.tool_calls is not None and len(first.message.tool_calls) == 2
    assert getattr(first.message, "reasoning_content", None) == "Two cities."
    # The client's own message object goes back as it came, reasoning and all.
    messages += [first.message, *answer_calls(first.message)]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0]
    assert (second.message.content, second.finish_reason) == ("Rain in Oslo, sun in Zürich.", "stop")
    assert second.message.tool_calls is None


def test_two_turns_streamed_with_the_accumulator(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        first = stream.get_final_completion().choices[0]
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert first.finish_reason == "tool_calls" and first.message.content == "I look."
    messages += [first.message.model_dump(exclude_none=True), *answer_calls(first.message)]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
        for _ in stream:
            pass
        second = stream.get_final_completion().choices[0]
    assert (second.message.content, second.finish_reason) == ("Rain in Oslo, sun in Zürich.", "stop")
