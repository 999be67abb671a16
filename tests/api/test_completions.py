"""POST /v1/completions: prompt forms, echo, scores, several prompts per call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from api.streams import Stream, stream
from twinpath.engine.scripted import ScriptedShape

COMPLETIONS = "/v1/completions"


def joined(streamed: Stream) -> dict[int, dict[str, Any]]:
    """A stream's choices put together, by index."""
    choices: dict[int, dict[str, Any]] = {}
    for part in streamed.choices():
        choice = choices.setdefault(
            part["index"], {"index": part["index"], "text": "", "logprobs": None, "reasons": []}
        )
        choice["text"] += part["text"]
        if part["logprobs"]:
            merged = choice["logprobs"] or {key: [] for key in part["logprobs"]}
            choice["logprobs"] = {key: merged[key] + part["logprobs"][key] for key in merged}
        if part["finish_reason"]:
            choice["reasons"].append(part["finish_reason"])
    return choices


def both(server: LiveServer, prompt: Any, **fields: Any) -> dict[str, Any]:
    """The whole answer, after checking that the stream says the same."""
    body = {"prompt": prompt, **fields}
    streamed = stream(server, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    answer = server.post(COMPLETIONS, body)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    parts = joined(streamed)
    assert [choice["index"] for choice in whole["choices"]] == sorted(parts)
    for choice in whole["choices"]:
        part = parts[choice["index"]]
        assert part["text"] == choice["text"]
        assert part["logprobs"] == choice["logprobs"]
        assert part["reasons"] == [choice["finish_reason"]]
    assert streamed.usage is not None
    for usage in (streamed.usage, whole["usage"]):
        usage["prompt_tokens_details"]["cached_tokens"] = 0
        del usage["twinpath"]  # Times differ.
    assert streamed.usage == whole["usage"]
    return whole


def test_max_tokens_defaults_to_16(server: LiveServer) -> None:
    answer = both(server, "Hello")
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Paris is the cap", "length")
    assert answer["object"] == "text_completion"
    assert answer["usage"]["prompt_tokens"] == 5


def test_ids_and_text_of_the_same_prompt_agree(server: LiveServer) -> None:
    text = both(server, "Hello", max_tokens=100)
    ids = both(server, list(b"Hello"), max_tokens=100)
    floats = both(server, [float(byte) for byte in b"Hello"], max_tokens=100)
    assert text["choices"] == ids["choices"] == floats["choices"]
    assert text["choices"][0]["finish_reason"] == "stop"
    assert text["usage"] == ids["usage"]


@pytest.mark.parametrize(
    "prompts", [["[abcdef]", "other", "[dots]"], [list(b"[abcdef]"), list(b"other"), list(b"[dots]")]]
)
def test_several_prompts_give_a_choice_each_in_order(server: LiveServer, prompts: list[Any]) -> None:
    answer = both(server, prompts, max_tokens=6)
    assert [choice["text"] for choice in answer["choices"]] == ["abcdef", "Paris ", "a.b.c."]
    assert answer["usage"]["prompt_tokens"] == len("[abcdef]") + len("other") + len("[dots]")
    assert answer["usage"]["completion_tokens"] == 18


def test_a_failing_prompt_fails_the_call_and_frees_the_others(server: LiveServer) -> None:
    answer = server.complete(["[long]", "[fails at 0]", "[long]"], max_tokens=4000)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"


def test_an_over_long_prompt_among_several_is_refused_before_any_runs(server: LiveServer) -> None:
    error = server.complete(["ok", "p" * 5000]).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_echo_puts_the_prompt_first(server: LiveServer) -> None:
    [choice] = both(server, "Hé, ", echo=True, max_tokens=5)["choices"]
    assert choice["text"] == "Hé, Paris"


def test_logprobs_in_the_legacy_shape(server: LiveServer) -> None:
    [choice] = both(server, "[accent]", logprobs=2, max_tokens=10)["choices"]
    scores = choice["logprobs"]
    assert choice["text"] == "é!"
    # Two bytes of one character, '!', and the end token, which has no text.
    assert scores["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!", "<|end|>"]
    assert scores["text_offset"] == [0, 1, 1, 2]
    assert scores["token_logprobs"][2] == pytest.approx(-(1 + 33 % 7) / 8)
    assert all(len(top) == 2 for top in scores["top_logprobs"])


def test_zero_logprobs_score_the_tokens_alone(server: LiveServer) -> None:
    [choice] = both(server, "hi", logprobs=0, max_tokens=3)["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{}, {}, {}]
    assert len(choice["logprobs"]["token_logprobs"]) == 3


def test_echo_with_logprobs_scores_the_prompt(server: LiveServer) -> None:
    [choice] = both(server, "Hey", echo=True, logprobs=1, max_tokens=2)["choices"]
    scores = choice["logprobs"]
    assert choice["text"] == "HeyPa"
    assert scores["tokens"] == ["H", "e", "y", "P", "a"]
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    # The scripted formula: token t scores -(1 + t % 7) / 8.
    assert scores["token_logprobs"][1:] == [pytest.approx(-(1 + byte % 7) / 8) for byte in b"eyPa"]
    assert scores["text_offset"] == [0, 1, 2, 3, 4]


def test_echo_with_no_new_tokens_scores_the_prompt_alone(server: LiveServer) -> None:
    answer = both(server, "Hey", echo=True, logprobs=1, max_tokens=0)
    [choice] = answer["choices"]
    assert choice["text"] == "Hey"
    assert choice["logprobs"]["tokens"] == ["H", "e", "y"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


def test_stop_strings_work_on_completions(server: LiveServer) -> None:
    [choice] = both(server, "[abcdef]", stop="de")["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "stop")


def test_b1_16_scores_are_strict_json(server: LiveServer) -> None:
    both(server, "hi", logprobs=5, top_p=0.3, temperature=0.01)


def test_b1_17_prompt_scores_of_four_long_prompts_at_once() -> None:
    shape = ScriptedShape(max_model_len=9000, num_pages=2400)
    with live_server(Setup(shape=shape)) as server:
        prompts = [f"{index}" + "p" * 7999 for index in range(4)]
        for choice in both(server, prompts, echo=True, logprobs=5, max_tokens=1)["choices"]:
            assert len(choice["logprobs"]["tokens"]) == 8001
            assert choice["logprobs"]["text_offset"][-1] == 8000
