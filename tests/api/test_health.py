"""Models, health, metrics, routes that are none, and the log line."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from api.live_server import MODEL, LiveServer, Setup, live_server
from api.test_bad_input import CHAT, refusal
from twinpath.engine.scripted import Script


def test_models_list_and_get(server: LiveServer) -> None:
    listed = server.http.get("/v1/models").json()
    [card] = listed["data"]
    assert listed["object"] == "list"
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", 4096)
    assert {"created", "owned_by"} <= set(card)
    # The id holds a slash, as it is or escaped.
    assert server.http.get(f"/v1/models/{MODEL}").json() == card
    assert server.http.get("/v1/models/org%2Fscripted").json() == card
    error = refusal(server.http.get("/v1/models/nope/at/all"), 404)
    assert error["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/embeddings", "/v1/batches", "/health/", "/V1/models", "/%00", "//"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH"])
def test_unknown_routes_are_404_in_the_envelope(server: LiveServer, path: str, method: str) -> None:
    assert refusal(server.http.request(method, path), 404)["type"] == "invalid_request_error"


@pytest.mark.parametrize(("path", "allowed"), [(CHAT, "POST"), ("/v1/models", "GET, HEAD"), ("/health", "GET, HEAD")])
def test_other_methods_are_405_with_allow(server: LiveServer, path: str, allowed: str) -> None:
    answer = server.http.put(path)
    refusal(answer, 405)
    assert answer.headers["allow"] == allowed


def test_head_has_headers_and_no_body(server: LiveServer) -> None:
    answer = server.http.head("/v1/models")
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) > 0
    assert answer.content == b""


def test_health_is_ok_when_ready(server: LiveServer) -> None:
    for path in ("/health", "/health/ready"):
        answer = server.http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def is_stalled(answer: httpx.Response) -> bool:
    """Looks at one answer as a whole: with the next token it is ready again."""
    assert (answer.status_code == 503) == ("no token" in answer.json()["status"])
    return answer.status_code == 503


def test_a_stall_makes_it_not_ready_but_live() -> None:
    setup = Setup(scripts=(Script(match="[slow]", text="abc", step_ms=800),), stall_s=0.3)
    with live_server(setup) as server:
        with server.client() as client, client.stream("POST", CHAT, json=chat_body("[slow]", stream=True)) as answer:
            server.wait_until(lambda: is_stalled(server.http.get("/health/ready")), "a stall is noticed")
            assert server.http.get("/health").status_code == 200
            answer.close()
        server.wait_until(lambda: server.http.get("/health/ready").status_code == 200, "ready again")


def test_metrics_count_what_happened() -> None:
    with live_server(Setup()) as server:
        before = server.gauges()
        prompt = "metrics " * 20
        for _ in range(2):
            server.chat(prompt)
        server.chat(prompt, stream=True)
        server.post(CHAT, b"x")
        after = server.gauges()

        def grown(name: str) -> float:
            return after[name] - before.get(name, 0.0)

        assert grown("vllm:prompt_tokens_total") == 3 * (160 + 4)
        assert grown("vllm:generation_tokens_total") == 3 * 22
        assert grown("vllm:request_success_total") == 3
        for name in (
            "vllm:time_to_first_token_seconds",
            "vllm:e2e_request_latency_seconds",
            "agent_end_to_end_seconds",
        ):
            assert grown(f"{name}_count") == 3
        assert grown("vllm:inter_token_latency_seconds_count") == 3 * 21
        assert grown("vllm:request_time_per_output_token_seconds_count") == 3
        server.wait_until(
            lambda: server.gauges()["vllm:prefix_cache_hits_total"] > 0, "a heartbeat brings cache counts"
        )
        assert server.gauges()["vllm:prefix_cache_queries_total"] > 0


def test_two_servers_in_one_process_share_no_metrics(server: LiveServer) -> None:
    with live_server(Setup()) as other:
        before = server.gauges()["vllm:generation_tokens_total"]
        other.chat()
        assert server.gauges()["vllm:generation_tokens_total"] == before


def chat_body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], **fields}


def test_one_log_line_per_request_without_its_text(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    secret = "prompt-s3cret"
    with caplog.at_level(logging.INFO, "twinpath.requests"):
        headers = {"x-request-id": "line-1", "authorization": "Bearer key-s3cret"}
        server.post(CHAT, chat_body(secret), headers=headers)
        server.post(CHAT, chat_body(secret, stream=True), headers={"x-request-id": "line-2"})
        server.post(CHAT, chat_body(secret, n=129), headers={"x-request-id": "line-3"})
        server.wait_until(lambda: len(caplog.messages) >= 3, "three lines")
    assert "s3cret" not in caplog.text
    first, second, third = caplog.messages[:3]
    for line, number in ((first, 1), (second, 2)):
        assert f'id="line-{number}"' in line and "status=200" in line and "reason=stop" in line
        assert "prompt=17" in line and "tokens=22" in line and "cached=" in line
        assert "ttft_ms=-" not in line and "engine_id=chatcmpl-" in line
    assert "status=400" in third and "ttft_ms=-" in third and "reason=error:" in third
