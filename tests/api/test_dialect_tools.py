"""Tools and reasoning through Messages and Responses: streamed and whole answers agree, and say what chat says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from api.named_events import stream
from twinpath.engine.scripted import Script

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def call(n: int) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {{"n": {n}}}}}\n</tool_call>'


SCRIPTS = (
    Script(match="[one]", text="I add." + call(1), chunks=(1, 7, 2)),
    Script(match="[two]", text=call(1) + "\n" + call(2), chunks=(5,)),
    Script(match="[think]", text="<think>\nHm.\n</think>\n\n" + call(1), chunks=(1, 2, 3)),
    Script(match="[think only]", text="<think>Hm.</think>4", chunks=(3,)),
    Script(match="[cut]", text=call(10**40)),
)
PROMPTS = ("[one]", "[two]", "[think]", "[think only]", "[cut]", "plain")
#: Kinds of blocks, with their text or their calls' arguments.
EXPECTED: dict[str, list[tuple[str, Any]]] = {
    "[one]": [("text", "I add."), ("call", {"n": 1})],
    "[two]": [("call", {"n": 1}), ("call", {"n": 2})],
    "[think]": [("reasoning", "Hm."), ("call", {"n": 1})],
    "[think only]": [("reasoning", "Hm."), ("text", "4")],
    "plain": [("text", "Paris is the capital.")],
}
LIMIT = 60


@pytest.fixture(scope="module")
def tool_server() -> Iterator[LiveServer]:
    server = LiveServer(Setup(scripts=SCRIPTS, tool_format="hermes", reasoning_format="think"))
    yield server
    server.close()


@pytest.fixture
def server(tool_server: LiveServer) -> Iterator[LiveServer]:
    yield tool_server
    tool_server.at_rest()


def messages_body(prompt: str, **fields: Any) -> dict[str, Any]:
    limit = LIMIT if prompt == "[cut]" else 500
    tools = [{"name": "add", "input_schema": SCHEMA}]
    return {"max_tokens": limit, "messages": [{"role": "user", "content": prompt}], "tools": tools, **fields}


def responses_body(prompt: str, **fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": "add", "parameters": SCHEMA}]
    body = {"input": prompt, "tools": tools, **fields}
    return body | ({"max_output_tokens": LIMIT} if prompt == "[cut]" else {})


def joined_blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Content blocks as Anthropic's own clients join them."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = dict(event["delta"])
            kind = delta.pop("type")
            [(name, text)] = delta.items()
            target = "json" if kind == "input_json_delta" else name
            blocks[event["index"]][target] += text
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            try:
                block["input"] = json.loads(text) if text else {}
            except ValueError:
                block["input"] = {}
    return blocks


@pytest.mark.parametrize("prompt", PROMPTS)
def test_messages_streams_join_to_the_whole_answer(server: LiveServer, prompt: str) -> None:
    whole = server.post("/v1/messages", messages_body(prompt)).json()
    events = stream(server, "/v1/messages", messages_body(prompt))
    blocks = joined_blocks(events)
    for block in (*blocks, *whole["content"]):
        block.pop("id", None)
    assert blocks == whole["content"]
    delta = next(event for event in events if event["type"] == "message_delta")
    assert delta["delta"]["stop_reason"] == whole["stop_reason"]
    assert delta["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    if prompt == "[cut]":
        assert whole["stop_reason"] == "max_tokens"
        return
    names = {"text": ("text", "text"), "thinking": ("reasoning", "thinking"), "tool_use": ("call", "input")}
    found = [(names[block["type"]][0], block[names[block["type"]][1]]) for block in whole["content"]]
    assert found == EXPECTED[prompt]
    assert whole["stop_reason"] == ("tool_use" if any(kind == "call" for kind, _ in found) else "end_turn")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_responses_streams_end_in_the_whole_answer(server: LiveServer, prompt: str) -> None:
    whole = server.post("/v1/responses", responses_body(prompt)).json()
    events = stream(server, "/v1/responses", responses_body(prompt))
    final = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in done]
    deltas: dict[str, str] = dict.fromkeys(added, "")
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[event["item_id"]] += event["delta"]
    assert list(deltas.values()) == [_text(item) for item in done]
    assert [_bare(item) for item in done] == [_bare(item) for item in whole["output"]]
    assert final["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert final["status"] == whole["status"] == ("incomplete" if prompt == "[cut]" else "completed")
    if prompt != "[cut]":
        names = {"message": "text", "reasoning": "reasoning", "function_call": "call"}
        found = [(names[i["type"]], json.loads(_text(i)) if i["type"] == "function_call" else _text(i)) for i in done]
        assert found == EXPECTED[prompt]


@pytest.mark.parametrize("prompt", ["[think]", "[think only]"])
def test_reasoning_tokens_are_counted_as_in_a_chat(server: LiveServer, prompt: str) -> None:
    details = server.chat(prompt).json()["usage"]["completion_tokens_details"]
    usage = server.post("/v1/responses", responses_body(prompt)).json()["usage"]
    assert usage["output_tokens_details"] == details
    assert details["reasoning_tokens"] > 0


def test_a_demanded_call_is_a_call_in_both() -> None:
    with live_server(Setup(tool_format="hermes")) as server:
        whole = server.post("/v1/messages", messages_body("anything", tool_choice={"type": "any"})).json()
        assert whole["stop_reason"] == "tool_use"
        assert [block["name"] for block in whole["content"] if block["type"] == "tool_use"]
        made = server.post("/v1/responses", responses_body("anything", tool_choice="required")).json()
        assert [item["name"] for item in made["output"] if item["type"] == "function_call"][:1] == ["add"]


def _text(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part["text"] for part in item["content"])


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}
