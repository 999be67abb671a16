"""/tokenize and /detokenize over the byte vocabulary: ids 0..255 are bytes, 256.. are control tokens."""

from __future__ import annotations

from typing import Any

import pytest

from api.live_server import LiveServer


def tokenize(server: LiveServer, **body: Any) -> dict[str, Any]:
    answer = server.post("/tokenize", body)
    assert answer.status_code == 200, answer.text
    got: dict[str, Any] = answer.json()
    return got


def test_a_prompt_becomes_its_ids(server: LiveServer) -> None:
    got = tokenize(server, prompt="hé<|end|>", return_token_strs=True)
    assert got == {
        "count": 4,
        "max_model_len": 4096,
        "tokens": [104, 195, 169, 256],
        "token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9", "<|end|>"],
    }
    assert tokenize(server, prompt="h", add_special_tokens=False)["tokens"] == [104]
    assert tokenize(server, prompt="") == {"count": 0, "max_model_len": 4096, "tokens": [], "token_strs": None}


def test_a_conversation_becomes_the_prompt_that_chat_would_see(server: LiveServer) -> None:
    messages = [{"role": "user", "content": "h"}]
    assert tokenize(server, messages=messages)["tokens"] == [257, 258, 104, 256, 259]
    assert tokenize(server, messages=messages, add_generation_prompt=False)["tokens"] == [257, 258, 104, 256]
    usage = server.chat("h").json()["usage"]
    assert usage["prompt_tokens"] == tokenize(server, messages=messages)["count"]


def test_ids_become_text_again(server: LiveServer) -> None:
    text = "tabs\tand 😀<|end|>"
    tokens = tokenize(server, prompt=text)["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": text}
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [512]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
def test_bad_bodies_are_refused(server: LiveServer, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_text_that_cannot_fit_is_refused_before_it_is_encoded(server: LiveServer) -> None:
    answer = server.post("/tokenize", {"prompt": "x" * 3_000_000})
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/audio/speech"])
def test_endpoints_of_other_models_are_a_clear_404(server: LiveServer, path: str) -> None:
    answer = server.post(path, {"input": "x", "model": "m"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unsupported_endpoint"
    assert "generates text" in answer.json()["error"]["message"]
