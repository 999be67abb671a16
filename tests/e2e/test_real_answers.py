"""Cases that need a real model: cached prefixes change nothing, scores are strict JSON, control text is harmless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
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


def streamed(server: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A stream of one choice, put together."""
    text, entries, reasons, usage = "", [], [], None
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{server.url}{path}", json=body, timeout=120, trust_env=False) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += (choice.get("text") if "text" in choice else choice["delta"].get("content")) or ""
                reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
                entries += [choice["logprobs"]] if choice["logprobs"] else []
    return {"text": text, "reasons": reasons, "entries": entries, "usage": usage}


def both(server: Served, body: dict[str, Any]) -> dict[str, Any]:
    """The whole chat answer, after checking that the stream says the same."""
    whole, stream = post(server, "/v1/chat/completions", body), streamed(server, "/v1/chat/completions", body)
    [choice] = whole["choices"]
    assert stream["text"] == choice["message"]["content"] and stream["reasons"] == [choice["finish_reason"]]
    assert [entry for part in stream["entries"] for entry in part["content"]] == (choice["logprobs"] or {}).get(
        "content", []
    )
    for usage in (whole["usage"], stream["usage"]):
        usage["prompt_tokens_details"]["cached_tokens"] = 0
        usage.pop("twinpath", None)
    assert whole["usage"] == stream["usage"]
    return whole


def test_b1_21_cached_prefixes_change_no_answer(server: Served, default_model_path: Path) -> None:
    answers = [chat(server, LONG_PROMPT, **LOGPROBS) for _ in range(4)]
    assert cached(answers[0]) == 0
    assert all(cached(answer) > 1000 for answer in answers[1:])
    with serving(str(default_model_path), "--no-enable-prefix-caching") as cold:
        answers.append(chat(cold, LONG_PROMPT, **LOGPROBS))
        assert cached(answers[-1]) == 0
        body = {"messages": [{"role": "user", "content": LONG_PROMPT}], "temperature": 0, "max_tokens": 16, **LOGPROBS}
        answers.append(both(cold, body))
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
    stream = streamed(server, "/v1/completions", body)
    assert stream["text"] == choice["text"]
    assert [score for part in stream["entries"] for score in part["token_logprobs"]] == scores
    assert len(scores) == 8
    assert all(-9999 <= score <= 0 for score in scores)


def test_b1_03_text_is_what_its_tokens_spell(server: Served) -> None:
    question = "Write a Python function with four spaces of indent, then two blank lines, then a list of emojis."
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 80, "logprobs": True}
    [choice] = both(server, body)["choices"]
    spelled = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
    text = choice["message"]["content"]
    assert "\n" in text and "    " in text
    # The last character may be cut by the limit, and the end of the turn is no text.
    assert spelled.decode(errors="ignore").removesuffix("<|im_end|>") == text


def test_stream_and_whole_answer_agree_at_temperature_zero(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Write one line of Python."}], "temperature": 0, "max_tokens": 40}
    assert both(server, body)["choices"][0]["message"]["content"]


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


def test_b1_17_prompt_scores_of_long_prompts_take_little_memory(server: Served) -> None:
    """Kept for all rows, the logits of these two would be 600 MB."""
    body = {"logprobs": 5, "echo": True, "max_tokens": 1}
    words = "memory is bounded by what a step may hold " * 160
    before = server.engine().memory_info().rss
    with ThreadPoolExecutor(2) as threads:
        answers = list(
            threads.map(lambda n: post(server, "/v1/completions", {**body, "prompt": f"{n} {words}"}), range(2))
        )
    assert all(len(answer["choices"][0]["logprobs"]["tokens"]) > 1400 for answer in answers)
    assert server.engine().memory_info().rss - before < 300e6


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "size": {"enum": ["small", "large"]},
        "people": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["city", "size", "people", "rivers"],
    "additionalProperties": False,
}
STRICT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}


@pytest.mark.parametrize("reasoning", ["none", "think"])
def test_b1_20_held_answers_are_the_same_alone_and_beside_others(default_model_path: Path, reasoning: str) -> None:
    def ask(number: int) -> str:
        body = {
            "messages": [{"role": "user", "content": f"Describe city number {number} as JSON."}],
            "response_format": STRICT,
            "temperature": 0,
            "max_tokens": 120,
        }
        [choice] = both(served, body)["choices"]
        text: str = choice["message"]["content"]
        jsonschema_rs.validate(CITY, json.loads(text))
        return text

    with serving(str(default_model_path), "--reasoning-format", reasoning) as served, ThreadPoolExecutor(16) as threads:
        together = list(threads.map(ask, range(16)))
        alone = [ask(number) for number in (0, 7, 15)]
    assert [together[0], together[7], together[15]] == alone


def test_an_answer_is_the_same_alone_and_beside_fifteen(server: Served) -> None:
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(lambda n: chat(server, f"Tell me about the number {n}.", **LOGPROBS), range(16)))
    for number in (3, 11):
        assert chat(server, f"Tell me about the number {number}.", **LOGPROBS)["choices"] == together[number]["choices"]
