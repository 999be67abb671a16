"""Bad bodies and bad fields: a 400 in the envelope for one caller, whatever it is, and nothing else happens."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from api.live_server import LiveServer
from api.streams import stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The envelope's inside, checked for what every refusal must be."""
    assert answer.status_code == status, (answer.status_code, answer.text[:300])
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert len(answer.content) < 8192
    body = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and isinstance(error["type"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return error


def chat(server: LiveServer, **fields: Any) -> httpx.Response:
    return server.post(CHAT, {"messages": HELLO, **fields})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'"text"',
        b"null",
        b"{",
        b'{"messages": [{"role": "user", "content": "hi"}]} trailing',
        b"\xef\xbb\xbf{}",
        b'{"messages": "\xff\xfe"}',
        b'{"messages": [{"role": "user", "content": "emoji \\ud83d"}]}',
        b'{"messages": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"messages": [{"role": "user", "content": "hi"}], "seed": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_malformed_bodies_are_400(server: LiveServer, path: str, body: bytes) -> None:
    refusal(server.post(path, body))


def test_duplicate_keys_take_the_last_value(server: LiveServer) -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "max_tokens": 2}'
    assert server.post(CHAT, body).json()["usage"]["completion_tokens"] == 2


def test_encoded_bodies_are_415_naming_the_encoding(server: LiveServer) -> None:
    with server.client() as client:
        answer = client.post(CHAT, content=b"x", headers={"content-encoding": "gzip"})
    assert "gzip" in refusal(answer, 415)["message"]


def test_two_tools_of_one_name_are_refused(server: LiveServer) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert refusal(chat(server, tools=[tool, tool]))["param"] == "tools"


def test_form_bodies_are_refused_by_their_type(server: LiveServer) -> None:
    with server.client() as client:
        answer = client.post(CHAT, data={"prompt": "x"})
    assert "JSON" in refusal(answer)["message"]


def test_b1_10_empty_messages(server: LiveServer) -> None:
    bodies: list[dict[str, Any]] = [{"messages": []}, {}, {"messages": None}]
    for body in bodies:
        for streamed in (False, True):
            assert refusal(server.post(CHAT, {**body, "stream": streamed}))["param"] == "messages"


@pytest.mark.parametrize("streamed", [False, True])
def test_b1_14_logit_bias_outside_the_vocabulary_hurts_nobody_else(server: LiveServer, streamed: bool) -> None:
    with ThreadPoolExecutor(18) as threads:
        good = [threads.submit(chat, server, max_tokens=20) for _ in range(16)]
        outside = threads.submit(chat, server, logit_bias={"1512": 5}, stream=streamed)
        no_number = threads.submit(chat, server, logit_bias={"abc": 5}, stream=streamed)
    error = refusal(outside.result())
    assert error["param"] == "logit_bias" and "1512" in error["message"]
    assert refusal(no_number.result())["param"] == "logit_bias"
    texts = {answer.result().json()["choices"][0]["message"]["content"] for answer in good}
    assert texts == {"Paris is the capital"[:20]}


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "-1", "1e999", '"0.7"', "true", "[]", "2.1"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("streamed", ["false", "true"])
def test_b1_15_temperatures_that_are_none(server: LiveServer, path: str, value: str, streamed: str) -> None:
    prompt = '"messages": [{"role": "user", "content": "hi"}]' if path == CHAT else '"prompt": "hi"'
    error = refusal(server.post(path, f'{{{prompt}, "temperature": {value}, "stream": {streamed}}}'.encode()))
    assert error["param"] in ("temperature", None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {str(key): 1 for key in range(1025)}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": []}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 3}, "min_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x" * 4097}, "stop"),
        ({"stop": ["x" * 100] * 41}, "stop"),
        ({"stop_token_ids": [512]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "a"}}, "audio"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else value,
)
def test_fields_that_cannot_be_honoured_are_named(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    for streamed in (False, True):
        body = {"messages": HELLO, "stream": streamed, **fields}
        assert refusal(server.post(CHAT, body))["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [512]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [10**30]}, "prompt[0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 129}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"echo": 1}, "echo"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else value,
)
def test_completion_fields_that_cannot_be_honoured_are_named(
    server: LiveServer, fields: dict[str, Any], param: str
) -> None:
    assert refusal(server.post(COMPLETIONS, {"prompt": "hi", **fields}))["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {
            "store": True,
            "metadata": {"a": "b"},
            "verbosity": "low",
            "service_tier": "auto",
            "prompt_cache_retention": "24h",
            "safety_identifier": "x",
            "moderation": {"deep": [1]},
            "modalities": ["text"],
            "reasoning_effort": "low",
            "parallel_tool_calls": False,
            "some_future_field": {"x": None},
        },
        {"tools": [], "tool_choice": "none", "functions": [], "function_call": "auto"},
        {"tool_choice": "auto", "response_format": {"type": "text"}, "n": 1.0, "best_of": 1},
        {"max_tokens": 82.0, "top_k": 5.0, "seed": 3.0, "min_tokens": 0.0, "temperature": 1},
        {"stop": [], "logit_bias": {}, "stop_token_ids": [], "stream_options": {"include_obfuscation": False}},
        {"logprobs": True, "top_logprobs": 0},
        {"priority": -1, "request_id": "abc", "cache_salt": "s", "user": "u", "prompt_cache_key": "k"},
        {"chat_template_kwargs": {"enable_thinking": False}, "ignore_eos": False},
        {"model": "", "temperature": 0, "top_p": 1, "min_p": 0, "top_k": 0, "repetition_penalty": 1.1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_that_ask_for_nothing_unserved_are_accepted(server: LiveServer, fields: dict[str, Any]) -> None:
    assert chat(server, **fields).status_code == 200


def test_null_means_not_given_for_every_chat_field(server: LiveServer) -> None:
    from twinpath.api.schemas import ChatCompletionRequest

    names = [name for name in ChatCompletionRequest.__struct_fields__ if name != "messages"]
    plain = chat(server).json()
    nulls = chat(server, **dict.fromkeys(names)).json()
    assert nulls["choices"] == plain["choices"]
    assert nulls["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


def test_b1_13_null_fields_on_completions(server: LiveServer) -> None:
    from twinpath.api.schemas import CompletionRequest

    plain = server.complete("hi").json()
    for names in (
        ("max_tokens", "stop", "logprobs", "n", "seed"),
        tuple(name for name in CompletionRequest.__struct_fields__ if name != "prompt"),
    ):
        answer = server.complete("hi", **dict.fromkeys(names))
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == plain["choices"]
        assert answer.json()["usage"]["completion_tokens"] == 16
        nulls: dict[str, Any] = {**dict.fromkeys(names), "stream": True}
        streamed = stream(server, COMPLETIONS, {"prompt": "hi", **nulls})
        assert "".join(choice["text"] for choice in streamed.choices()) == plain["choices"][0]["text"]
        assert streamed.finish_reasons == ["length"] and streamed.usage is None


def test_unknown_models_are_404(server: LiveServer) -> None:
    for path, body in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "hi"})):
        error = refusal(server.post(path, {**body, "model": "gpt-9", "stream": True}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_errors_never_echo_the_input(server: LiveServer) -> None:
    secret = "s3cr3t" * 2000
    for body in (
        {"messages": HELLO, "model": secret},
        {"messages": HELLO, "temperature": secret},
        {"messages": [{"role": secret, "content": "x"}]},
        {"messages": HELLO, "logit_bias": {secret: 1}},
        {"messages": HELLO, "tool_choice": secret},
    ):
        answer = server.post(CHAT, body)
        assert 400 <= answer.status_code < 500
        assert len(answer.content) < 1024
    refusal(server.post("/v1/" + "x" * 5000, b"{}"), 404)


def test_a_byte_order_mark_before_the_body_is_no_fault(server: LiveServer) -> None:
    body = json.dumps({"prompt": "plain", "max_tokens": 3}).encode()
    assert server.post(COMPLETIONS, b"\xef\xbb\xbf" + body).status_code == 200
    assert server.post(COMPLETIONS, b"\xef\xbb\xbf" * 2 + b"{").status_code == 400
