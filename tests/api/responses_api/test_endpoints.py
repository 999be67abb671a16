"""POST /v1/responses over HTTP, and through the `openai` client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from api.live_server import MODEL, LiveServer, Setup, live_server
from api.named_events import parse, stream

#: Fields that differ between any two responses.
PER_CALL = {"id": "", "created_at": 0, "output": []}


def ask(server: LiveServer, prompt: Any = "hi", **fields: Any) -> dict[str, Any]:
    answer = server.post("/v1/responses", {"input": prompt, **fields})
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    usage = {**response["usage"], "input_tokens_details": {}}
    output = [{**item, "id": ""} for item in response["output"]]
    return {**response, "id": "", "created_at": 0, "output": output, "usage": usage}


@pytest.mark.parametrize(
    ("prompt", "fields", "status"),
    [
        ("hi", {}, "completed"),
        ("[long]", {"max_output_tokens": 5}, "incomplete"),
        ("[accent]", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}, "completed"),
    ],
)
def test_streams_end_in_the_whole_answer(server: LiveServer, prompt: str, fields: dict[str, Any], status: str) -> None:
    whole = ask(server, prompt, **fields)
    events = stream(server, "/v1/responses", {"input": prompt, **fields})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]
    assert last["type"] == f"response.{status}"
    assert comparable(last["response"]) == comparable(whole)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == text_of(whole)
    [part] = whole["output"][0]["content"]
    assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]


def test_events_come_in_openai_s_order(server: LiveServer) -> None:
    events = stream(server, "/v1/responses", {"input": "[abcdef]"})
    kinds = [event["type"] for event in events]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 6,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    added, done, completed = events[2]["item"], events[-2]["item"], events[-1]["response"]
    assert added["content"] == [] and added["status"] == "in_progress"
    assert added["id"] == done["id"] == completed["output"][0]["id"]
    assert {event["item_id"] for event in events if "item_id" in event} == {added["id"]}
    assert done == completed["output"][0]
    assert events[0]["response"]["id"] == completed["id"]
    assert events[0]["response"]["status"] == "in_progress"


def test_log_probabilities_belong_to_the_text(server: LiveServer) -> None:
    whole = ask(server, include=["message.output_text.logprobs"], top_logprobs=2)
    [part] = whole["output"][0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == "Paris is the capital."
    # The scripted engine's formula for 'P' (80): -(1 + 80 % 7) / 8.
    assert part["logprobs"][0]["logprob"] == pytest.approx(-0.5)
    assert [top["token"] for top in part["logprobs"][0]["top_logprobs"]] == ["P", "Q"]


def test_a_conversation_goes_on_from_the_store() -> None:
    with live_server(Setup(keep_plans=True)) as server:
        first = ask(server, "one", instructions="Only now.")
        second = ask(server, "two", previous_response_id=first["id"])
        third = ask(server, "three", previous_response_id=second["id"])
        said = "one", "Paris is the capital.", "two", "Paris is the capital.", "three"
        roles = ("user", "assistant") * 2 + ("user",)
        in_full = ask(server, [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)])
        assert third["usage"]["input_tokens"] == in_full["usage"]["input_tokens"]
        assert third["previous_response_id"] == second["id"]
        assert third["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_unstored_and_unknown_responses_cannot_be_followed(server: LiveServer) -> None:
    unstored = ask(server, store=False)
    for missing in (unstored["id"], "resp_nope"):
        answer = server.post("/v1/responses", {"input": "x", "previous_response_id": missing})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "previous_response_not_found"
        assert answer.json()["error"]["param"] == "previous_response_id"


def test_stored_responses_belong_to_their_key() -> None:
    with live_server(Setup(http={"api_keys": ("sk-a", "sk-b")})) as server:
        alice, bob = ({"authorization": f"Bearer sk-{name}"} for name in "ab")
        made = server.post("/v1/responses", {"input": "secret"}, headers=alice).json()
        path = f"/v1/responses/{made['id']}"
        assert server.http.get(path, headers=bob).status_code == 404
        assert server.http.delete(path, headers=bob).status_code == 404
        assert server.http.get(path, headers=alice).json() == made
        follow = {"input": "x", "previous_response_id": made["id"]}
        assert server.post("/v1/responses", follow, headers=bob).status_code == 400
        assert server.http.delete(path, headers=alice).json() == {
            "id": made["id"],
            "object": "response",
            "deleted": True,
        }
        assert server.http.get(path, headers=alice).status_code == 404


@pytest.mark.parametrize("streamed", [False, True])
def test_an_overflow_is_a_plain_refusal(server: LiveServer, streamed: bool) -> None:
    answer = server.post("/v1/responses", {"input": "p" * 9000, "stream": streamed})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "input"


def test_a_failure_in_a_stream_is_response_failed(server: LiveServer) -> None:
    events = parse(server.post("/v1/responses", {"input": "[fails at 2]", "stream": True}).text)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["message"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert server.post("/v1/responses", {"input": "[fails at 2]"}).status_code == 500


def test_the_request_is_echoed(server: LiveServer) -> None:
    whole = ask(server, temperature=0.5, metadata={"k": "v"}, text={"format": {"type": "text"}}, user="u")
    assert (whole["temperature"], whole["metadata"], whole["user"]) == (0.5, {"k": "v"}, "u")
    assert whole["text"]["format"]["type"] == "text"
    assert (whole["tools"], whole["tool_choice"], whole["object"]) == ([], "auto", "response")


def test_the_openai_client(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        made = client.responses.create(model=MODEL, input="hi")
        assert made.output_text == "Paris is the capital."
        with client.responses.stream(model=MODEL, input="more", previous_response_id=made.id) as streamed:
            kinds = [event.type for event in streamed]
            assert streamed.get_final_response().output_text == "Paris is the capital."
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert client.responses.retrieve(made.id).output_text == "Paris is the capital."
        client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=MODEL, input="p" * 9000)
        assert refused.value.code == "context_length_exceeded"
