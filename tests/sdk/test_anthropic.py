"""The `anthropic` client, and requests as Claude Code sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.live_server import LiveServer
from api.named_events import parse
from sdk import questions as q

anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed (make test-sdk)")

TOOL: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HELLO: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(server: LiveServer) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key=q.KEY, max_retries=0, timeout=20) as client:
        yield client


def test_message_and_stream_with_usage(client: Any) -> None:
    whole = client.messages.create(model=q.MODEL, max_tokens=50, messages=HELLO)
    assert whole.content[0].text == q.ANSWER
    with client.messages.stream(model=q.MODEL, max_tokens=50, messages=HELLO) as events:
        assert "".join(events.text_stream) == q.ANSWER
        final = events.get_final_message()
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert client.messages.count_tokens(model=q.MODEL, messages=HELLO).input_tokens == 6


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop(client: Any, streamed: bool) -> None:
    messages: Any = [{"role": "user", "content": q.WEATHER_QUESTION}]
    asked = {"model": q.MODEL, "max_tokens": 200, "tools": [TOOL]}
    if streamed:
        with client.messages.stream(messages=messages, **asked) as events:
            first = events.get_final_message()
    else:
        first = client.messages.create(messages=messages, **asked)
    assert first.stop_reason == "tool_use"
    [use] = [block for block in first.content if block.type == "tool_use"]
    assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": q.WEATHER_RESULT}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=messages, **asked).content[0].text == q.WEATHER_ANSWER


def test_structured_output(client: Any) -> None:
    answer = client.messages.create(
        model=q.MODEL,
        max_tokens=100,
        messages=[{"role": "user", "content": q.JSON_QUESTION}],
        output_config={"format": {"type": "json_schema", "schema": q.CITY_SCHEMA}},
    )
    assert json.loads(answer.content[0].text) == q.CITY


def test_overflow_says_what_clients_look_for(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4096 maximum"):
        client.messages.create(model=q.MODEL, max_tokens=5, messages=[{"role": "user", "content": q.TOO_LONG}])


def test_leaving_cancels(client: Any, server: LiveServer) -> None:
    messages: Any = [{"role": "user", "content": q.LONG_QUESTION}]
    with client.messages.stream(model=q.MODEL, max_tokens=3000, messages=messages) as events:
        next(iter(events))
    server.wait_until(server.is_idle, "cancelled", 2)


def test_a_request_as_claude_code_sends_it(server: LiveServer) -> None:
    """Query string, beta headers, a billing block, cache marks, thinking, a session in the metadata."""
    body = {
        "model": q.MODEL,
        "max_tokens": 32000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f3a;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": q.WEATHER_QUESTION, "cache_control": None}]},
        ],
        "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "temperature": 1,
        "metadata": {"user_id": "user_abc_account__session_0c1e"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    headers = {
        "authorization": "Bearer any",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    }
    answer = server.post("/v1/messages?beta=true", body, headers=headers)
    assert answer.status_code == 200, answer.text
    events = parse(answer.text)
    assert events[0]["type"] == "message_start"
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    joined = "".join(e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta")
    assert json.loads(joined) == {"city": "Paris"}
