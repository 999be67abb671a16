"""A 135M model that has to call tools: whatever it makes of the question, its calls are whole and fit their schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai
import pytest

from e2e.served import serving

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
MAIL: dict[str, Any] = {
    "type": "object",
    "properties": {"to": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 2}},
    "required": ["to"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "send_mail": MAIL}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": name.replace("_", " "), "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
QUESTION: Any = [{"role": "user", "content": "What is the weather like in Paris? Use celsius."}]
CHOICES: tuple[Any, ...] = ("required", {"type": "function", "function": {"name": "send_mail"}})


@pytest.fixture(scope="module")
def client(default_model_path: Path) -> Iterator[openai.OpenAI]:
    with (
        serving(str(default_model_path)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", timeout=60, max_retries=0) as client,
    ):
        yield client


def checked(message: Any) -> list[tuple[str, Any]]:
    """The calls, each valid."""
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
    for name, arguments in calls:
        jsonschema_rs.validate(SCHEMAS[name], arguments)
    return calls


@pytest.mark.model
@pytest.mark.parametrize("choice", CHOICES, ids=["required", "named"])
@pytest.mark.parametrize("parallel", [True, False])
def test_b1_06_demanded_calls_are_valid_whole_and_streamed(client: openai.OpenAI, choice: Any, parallel: bool) -> None:
    request: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "temperature": 0,
        "max_tokens": 400,
    }
    whole = client.chat.completions.create(**request).choices[0]
    with client.chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    calls = checked(whole.message)
    assert calls == checked(streamed.message)
    assert whole.finish_reason == streamed.finish_reason
    if choice == "required" and parallel:
        assert calls and whole.finish_reason in ("tool_calls", "length")
    else:
        assert len(calls) == 1 and whole.finish_reason == "tool_calls"
    if choice != "required":
        assert calls[0][0] == "send_mail"


@pytest.mark.model
@pytest.mark.parametrize("max_tokens", [40, 64])
def test_a_call_is_closed_when_tokens_run_out(client: openai.OpenAI, max_tokens: int) -> None:
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        temperature=1.5,
        seed=7,
        max_tokens=max_tokens,
    )
    assert checked(answer.choices[0].message)
    assert answer.usage is not None and answer.usage.completion_tokens <= max_tokens


@pytest.mark.model
def test_the_loop_goes_on_after_the_call(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    first = client.chat.completions.create(
        model=model, messages=QUESTION, tools=TOOLS, tool_choice=CHOICES[1], temperature=0, max_tokens=100
    ).choices[0]
    [call] = first.message.tool_calls or ()
    result = {"role": "tool", "tool_call_id": call.id, "content": "sent"}
    second = client.chat.completions.create(
        model=model, messages=[*QUESTION, first.message, result], tools=TOOLS, temperature=0, max_tokens=32
    )
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens and second.usage.prompt_tokens_details.cached_tokens > 100
