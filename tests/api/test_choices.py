"""Several answers to one prompt: one prefill, usage counted once, order and indices as asked."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from api.streams import stream

LONG_PROMPT = "one prompt of many pages, " * 30
ANSWER = "Paris is the capital."


def chat_body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], **fields}


def texts_by_index(chunks: list[dict[str, Any]]) -> dict[int, str]:
    texts: defaultdict[int, str] = defaultdict(str)
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return dict(texts)


def reasons_by_index(chunks: list[dict[str, Any]]) -> dict[int, list[str]]:
    reasons: defaultdict[int, list[str]] = defaultdict(list)
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["finish_reason"]:
                reasons[choice["index"]].append(choice["finish_reason"])
    return dict(reasons)


def test_chat_gives_n_choices_for_one_prompt(server: LiveServer) -> None:
    whole = server.post("/v1/chat/completions", chat_body("three please", n=3)).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in whole["choices"]] == [ANSWER] * 3
    alone = server.post("/v1/chat/completions", chat_body("three please")).json()["usage"]
    assert whole["usage"]["prompt_tokens"] == alone["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] == 3 * alone["completion_tokens"]


def test_a_chat_stream_of_n_choices_joins_to_the_whole_answer(server: LiveServer) -> None:
    body = chat_body("three, streamed", n=3, logprobs=True, stream_options={"include_usage": True})
    streamed = stream(server, "/v1/chat/completions", body)
    whole = server.post("/v1/chat/completions", chat_body("three, streamed", n=3, logprobs=True)).json()
    assert texts_by_index(streamed.chunks) == dict(enumerate([ANSWER] * 3))
    assert reasons_by_index(streamed.chunks) == {0: ["stop"], 1: ["stop"], 2: ["stop"]}
    roles = [c["index"] for c in streamed.choices() if c["delta"].get("role")]
    assert sorted(roles) == [0, 1, 2]
    for choice in whole["choices"]:
        own = [c["logprobs"]["content"] for c in streamed.choices() if c["index"] == choice["index"] and c["logprobs"]]
        assert [entry for entries in own for entry in entries] == choice["logprobs"]["content"]
    assert streamed.usage is not None
    assert streamed.usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert streamed.usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_completions_number_choices_by_prompt_then_answer(server: LiveServer) -> None:
    body = {"prompt": ["[abcdef]", "other"], "n": 2, "max_tokens": 6}
    whole = server.post("/v1/completions", body).json()
    expected = ["abcdef", "abcdef", "Paris ", "Paris "]
    assert [choice["text"] for choice in whole["choices"]] == expected
    assert whole["usage"]["prompt_tokens"] == len("[abcdef]") + len("other")
    streamed = stream(server, "/v1/completions", body)
    assert texts_by_index(streamed.chunks) == dict(enumerate(expected))


def test_n_choices_cost_one_prefill() -> None:
    with live_server(Setup(keep_plans=True)) as server:
        usage = server.post("/v1/chat/completions", chat_body(LONG_PROMPT, n=8)).json()["usage"]
        computed = sum(len(plan.tokens) for plan in server.engine.plans)
        page_size = server.engine.info.page_size
        # Its last page again for each of the other choices, and what was generated.
        most = usage["prompt_tokens"] + 7 * page_size + usage["completion_tokens"]
        assert usage["prompt_tokens"] < computed <= most
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_each_choice_draws_with_a_seed_of_its_own() -> None:
    with live_server(Setup(keep_plans=True)) as server:
        server.post("/v1/chat/completions", chat_body("seeded", n=3, seed=2**63 - 2))
        seeds = [init.sampling.seed for plan in server.engine.plans for init in plan.inits]
        assert sorted(seeds) == [-(2**63), 2**63 - 2, 2**63 - 1]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_too_many_choices_are_refused(server: LiveServer, path: str) -> None:
    body = chat_body("x", n=129) if "chat" in path else {"prompt": ["a", "b"], "n": 65}
    answer = server.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"


def test_leaving_cancels_all_choices(server: LiveServer) -> None:
    body = chat_body("[long]", n=4, stream=True, max_tokens=3000)
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_raw())
    server.wait_until(server.is_idle, "cancelled", 2)


def test_one_failing_choice_fails_the_call(server: LiveServer) -> None:
    assert server.post("/v1/chat/completions", chat_body("[fails at 0]", n=3)).status_code == 500
    assert server.post("/v1/chat/completions", chat_body("[fails at 2]", n=3)).status_code == 500
