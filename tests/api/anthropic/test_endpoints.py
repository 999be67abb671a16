"""POST /v1/messages and count_tokens over HTTP, and through the `anthropic` client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.live_server import MODEL, LiveServer, Setup, live_server
from api.named_events import parse, stream
from twinpath.engine.scripted import Script

HELLO = [{"role": "user", "content": "hi"}]


def ask(server: LiveServer, prompt: str = "hi", **fields: Any) -> dict[str, Any]:
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": prompt}], **fields}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream as the whole message that its events build, checked to be in Anthropic's order."""
    first, *changes, delta, last = events
    assert first["type"] == "message_start" and delta["type"] == "message_delta" and last == {"type": "message_stop"}
    message: dict[str, Any] = first["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    opened = False
    for event in changes:
        if event["type"] == "content_block_start":
            assert not opened and event["index"] == len(message["content"])
            assert event["content_block"] == {"type": "text", "text": ""}
            message["content"].append(event["content_block"])
            opened = True
        elif event["type"] == "content_block_delta":
            assert opened and event["index"] == len(message["content"]) - 1
            message["content"][-1]["text"] += event["delta"]["text"]
        else:
            assert event["type"] == "content_block_stop" and event["index"] == len(message["content"]) - 1
            opened = False
    assert not opened
    return {**message, **delta["delta"], "usage": delta["usage"]}


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Without the id, and with the prompt's tokens in one: the second call finds the first one's in the cache."""
    usage = dict(message["usage"])
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    return {**message, "id": "", "usage": usage}


@pytest.mark.parametrize(
    ("prompt", "fields", "reason", "sequence"),
    [
        ("hi", {}, "end_turn", None),
        ("[abcdef]", {"stop_sequences": ["zz", "de"]}, "stop_sequence", "de"),
        ("[long]", {"max_tokens": 5}, "max_tokens", None),
        ("[spaces]", {"system": "be exact"}, "end_turn", None),
    ],
)
def test_streams_build_the_whole_answer(
    server: LiveServer, prompt: str, fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    whole = ask(server, prompt, **fields)
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": prompt}], **fields}
    assert comparable(joined(stream(server, "/v1/messages", body))) == comparable(whole)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", MODEL)
    assert whole["id"].startswith("msg_")


def test_an_answer_without_text_has_an_empty_block() -> None:
    with live_server(Setup()) as server:
        whole = ask(server, stop_sequences=["Paris is the capital."])
        assert whole["content"] == [{"type": "text", "text": ""}]


def test_cached_tokens_are_not_counted_twice(server: LiveServer) -> None:
    prompt = "count me " * 20
    before, after = (ask(server, prompt)["usage"] for _ in range(2))
    assert before["cache_read_input_tokens"] == 0 < after["cache_read_input_tokens"]
    total = after["input_tokens"] + after["cache_read_input_tokens"]
    assert total == before["input_tokens"]
    assert before["cache_creation_input_tokens"] == 0


def test_count_tokens_is_the_prompt_of_the_same_request(server: LiveServer) -> None:
    body = {"messages": HELLO, "system": "be exact"}
    counted = server.post("/v1/messages/count_tokens", body).json()
    usage = ask(server, system="be exact")["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


@pytest.mark.parametrize(
    ("body", "status", "kind", "text"),
    [
        (b"not json", 400, "invalid_request_error", "not valid JSON"),
        ({"messages": HELLO}, 400, "invalid_request_error", "'max_tokens' is required"),
        ({"max_tokens": 1, "messages": []}, 400, "invalid_request_error", "messages"),
        ({"max_tokens": 1, "messages": HELLO, "model": "claude-9"}, 404, "not_found_error", "claude-9"),
        (
            {"max_tokens": 1, "messages": [{"role": "user", "content": "p" * 9000}]},
            400,
            "invalid_request_error",
            "prompt is too long: 9004 tokens > 4096 maximum",
        ),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_refusals_are_in_anthropic_s_envelope(
    server: LiveServer, body: Any, status: int, kind: str, text: str, streamed: bool
) -> None:
    if streamed and isinstance(body, dict):
        body = {**body, "stream": True}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == kind
    assert text in answer.json()["error"]["message"]


def test_routes_and_keys_are_refused_in_the_same_envelope() -> None:
    with live_server(Setup(http={"api_keys": ("sk-right",)})) as server:
        wrong = server.post("/v1/messages", {}, headers={"x-api-key": "sk-wrong"})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
        right = {"x-api-key": "sk-right"}
        nowhere = server.post("/v1/messages/batches", {}, headers=right)
        assert (nowhere.status_code, nowhere.json()["error"]["type"]) == (404, "not_found_error")
        answer = server.post("/v1/messages", {"max_tokens": 9, "messages": HELLO}, headers=right)
        assert answer.status_code == 200
        assert answer.headers["request-id"] == answer.headers["x-request-id"]


def test_a_failure_in_a_stream_is_an_error_event(server: LiveServer) -> None:
    body = {"max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "[fails at 2]"}]}
    events = parse(server.post("/v1/messages", body).text)
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "api_error"
    assert "message_stop" not in [event["type"] for event in events]
    assert server.post("/v1/messages", json.dumps({**body, "stream": False}).encode()).status_code == 500


def test_silence_is_filled_with_pings() -> None:
    slow = Setup(default=Script(text="ab", step_ms=250.0), http={"sse_keepalive_s": 0.1})
    with live_server(slow) as server:
        events = stream(server, "/v1/messages", {"max_tokens": 9, "messages": HELLO})
        assert {"type": "ping"} in events
        built = joined([event for event in events if event["type"] != "ping"])
        assert built["content"] == [{"type": "text", "text": "ab"}]


def test_the_anthropic_client(server: LiveServer) -> None:
    anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        message = client.messages.create(model=MODEL, max_tokens=50, messages=HELLO)
        assert message.content[0].text == "Paris is the capital."
        with client.messages.stream(model=MODEL, max_tokens=50, messages=HELLO, system="x") as streamed:
            assert "".join(streamed.text_stream) == "Paris is the capital."
            assert streamed.get_final_message().stop_reason == "end_turn"
        assert client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens == 6
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="claude-9", max_tokens=50, messages=HELLO)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
            client.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "p" * 9000}])


def test_leaving_a_stream_cancels_it(server: LiveServer) -> None:
    body = {"max_tokens": 4000, "stream": True, "messages": [{"role": "user", "content": "[long]"}]}
    with server.http.stream("POST", "/v1/messages", json=body) as answer:
        next(answer.iter_raw())
    server.wait_until(server.is_idle, "cancelled", 2)
