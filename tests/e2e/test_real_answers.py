"""Cases that need a real model: cached prefixes change nothing, scores are strict JSON, control text is harmless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.served import Served, serving

pytestmark = [pytest.mark.model, pytest.mark.slow]

#: About 1,500 tokens.
LONG_PROMPT = "The quick brown fox jumps over the lazy dog, and then it rests. " * 95
LOGPROBS = {"logprobs": True, "top_logprobs": 3}


@pytest.fixture(scope="module")
def server(default_model_path: Path) -> Iterator[Served]:
    with serving(str(default_model_path)) as served:
        yield served


def post(server: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    strict: dict[str, Any] = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    return strict


def chat(server: Served, content: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 16, **fields}
    return post(server, "/v1/chat/completions", body)


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_b1_21_cached_prefixes_change_no_answer(server: Served, default_model_path: Path) -> None:
    answers = [chat(server, LONG_PROMPT, **LOGPROBS) for _ in range(4)]
    assert cached(answers[0]) == 0
    assert all(cached(answer) > 1000 for answer in answers[1:])
    with serving(str(default_model_path), "--no-enable-prefix-caching") as cold:
        answers.append(chat(cold, LONG_PROMPT, **LOGPROBS))
        assert cached(answers[-1]) == 0
    # Bit for bit: text and scores.
    assert all(answer["choices"] == answers[0]["choices"] for answer in answers)


def test_b1_21_another_conversations_secret_stays_there(server: Served, default_model_path: Path) -> None:
    system = {"role": "system", "content": "You are a helpful assistant. Keep answers short. " * 20}

    def ask(served: Served, *contents: str) -> dict[str, Any]:
        turns = [{"role": "user", "content": content} for content in contents]
        body = {"messages": [system, *turns], "temperature": 0, "max_tokens": 12, **LOGPROBS}
        return post(served, "/v1/chat/completions", body)

    ask(server, "The secret word is XYLOPHONE42. Remember it.")
    asked = ask(server, "What is the secret word?")
    assert cached(asked) > 100
    with serving(str(default_model_path)) as cold:
        assert asked["choices"] == ask(cold, "What is the secret word?")["choices"]
    assert "XYLOPHONE" not in asked["choices"][0]["message"]["content"]


def test_b1_16_unlikely_tokens_have_finite_scores(server: Served) -> None:
    body = {"prompt": "The capital of France is", "logprobs": 5, "top_p": 0.3, "temperature": 0.01, "max_tokens": 8}
    [choice] = post(server, "/v1/completions", body)["choices"]
    scores = choice["logprobs"]["token_logprobs"]
    assert len(scores) == 8
    assert all(-9999 <= score <= 0 for score in scores)


def test_stream_and_whole_answer_agree_at_temperature_zero(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Write one line of Python."}], "temperature": 0, "max_tokens": 40}
    whole = post(server, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    text = ""
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60, trust_env=False
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    text += choice["delta"].get("content", "")
    assert text == whole


def test_a_seed_gives_the_same_sampled_answer(server: Served) -> None:
    answers = [chat(server, "Tell me a story.", temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] == texts[1] != texts[2]


def test_echoed_scores_are_those_of_the_prompt(server: Served) -> None:
    prompt = "Paris is the capital of France"
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
    [choice] = post(server, "/v1/completions", body)["choices"]
    scores = choice["logprobs"]
    assert choice["text"] == prompt
    assert "".join(scores["tokens"]) == prompt
    assert scores["token_logprobs"][0] is None
    assert all(score <= 0 for score in scores["token_logprobs"][1:])
    # Each token, generated from those before it, has the score that the echo gave it.
    last = {"prompt": prompt.removesuffix(" France"), "logprobs": 5, "max_tokens": 1, "temperature": 0}
    [after] = post(server, "/v1/completions", last)["choices"]
    top = after["logprobs"]["top_logprobs"][0]
    assert top[" France"] == pytest.approx(scores["token_logprobs"][-1], abs=1e-4)
