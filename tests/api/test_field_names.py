"""Errors of Messages and Responses name the caller's own fields, those of a grammar the field it came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from twinpath.errors import InvalidRequest
from twinpath.grammar import GrammarCompiler
from twinpath.types import Grammar

UNENFORCEABLE = {"type": "object", "properties": {"a": {"type": "array", "items": {}, "uniqueItems": True}}}
#: Refuses a word.
FUSSY = (
    "{% for m in messages %}{% if 'rude' in m.content %}{{ raise_exception('be polite') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    with live_server(Setup(tool_format="hermes")) as server:
        yield server


def refused(server: LiveServer, path: str, **fields: Any) -> dict[str, Any]:
    own = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    own |= {"max_tokens": 50} if path == "/v1/messages" else {}
    answer = server.post(path, own | fields)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [tool("a"), tool("b ad")]}, "tools[1].name", "'tools[1].name'"),
        ({"tools": [tool("a"), tool("b", parameters=[])]}, "tools[1].parameters", "'tools[1].parameters'"),
        (
            {"tools": [tool("a"), tool("b", parameters=UNENFORCEABLE, strict=True)]},
            "tools[1].parameters",
            "'tools[1].parameters' at '/properties/a",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": UNENFORCEABLE}}},
            "text.format.schema",
            "'text.format.schema' at '/properties/a",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "'text.format.schema' is missing"),
        ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools", "at least|one function"),
        ({"tool_choice": tool("messages"), "tools": [tool("a")]}, "tool_choice", "the tool 'messages'"),
    ],
)
def test_responses_errors_name_its_own_fields(
    shared: LiveServer, fields: dict[str, Any], param: str, words: str
) -> None:
    error = refused(shared, "/v1/responses", **fields)
    assert error["param"] == param
    assert any(word in error["message"] for word in words.split("|"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"name": "a"}, {"name": "b ad"}]}, "'tools[1].name'"),
        (
            {"tools": [{"name": "a"}, {"name": "b", "input_schema": UNENFORCEABLE, "strict": True}]},
            "'tools[1].input_schema' at '/properties/a",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": UNENFORCEABLE}}},
            "'output_config.format.schema' at '/properties/a",
        ),
        (
            {"output_format": {"type": "json_schema", "schema": UNENFORCEABLE}},
            "'output_format.schema' at '/properties/a",
        ),
        ({"stop_sequences": ["x" * 5000]}, "'stop_sequences'"),
        ({"tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "stop"}}, "the tool 'stop'"),
    ],
)
def test_messages_errors_name_its_own_fields(shared: LiveServer, fields: dict[str, Any], words: str) -> None:
    assert words in refused(shared, "/v1/messages", **fields)["message"]


def test_a_template_s_refusal_blames_the_field_of_the_conversation() -> None:
    with live_server(Setup(chat_template=FUSSY)) as server:
        error = refused(server, "/v1/responses", input="rude")
        assert (error["param"], "be polite" in error["message"]) == ("input", True)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"n": 2}),
        ("/v1/responses", {"stop": ["x"]}),
        ("/v1/responses", {"seed": 1}),
        ("/v1/responses", {"max_tokens": 5}),
        ("/v1/responses", {"response_format": {"type": "json_object"}}),
        ("/v1/messages", {"n": 2}),
        ("/v1/messages", {"stop": "x"}),
        ("/v1/messages", {"logit_bias": {"5": -100}}),
        ("/v1/messages", {"max_completion_tokens": 5}),
        ("/v1/messages", {"response_format": {"type": "json_object"}}),
    ],
)
def test_chat_s_fields_that_would_change_the_answer_are_refused_elsewhere(
    shared: LiveServer, path: str, fields: dict[str, Any]
) -> None:
    [name] = fields
    assert f"'{name}'" in refused(shared, path, **fields)["message"]


def test_a_misplaced_field_is_refused_with_its_name_there(shared: LiveServer) -> None:
    assert "'max_output_tokens'" in refused(shared, "/v1/responses", max_tokens=5)["message"]
    assert "'stop_sequences'" in refused(shared, "/v1/messages", stop="x")["message"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_values_that_ask_for_nothing_are_taken(shared: LiveServer, path: str) -> None:
    own = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    own |= {"max_tokens": 50} if path == "/v1/messages" else {}
    neutral = {"n": 1, "stop": None, "seed": None, "presence_penalty": 0.0, "response_format": {"type": "text"}}
    assert shared.post(path, own | neutral).status_code == 200


@pytest.mark.parametrize(("budget", "status"), [(49, 200), (50, 400), (4000, 400)])
def test_a_thinking_budget_leaves_room_for_an_answer(shared: LiveServer, budget: int, status: int) -> None:
    body = {"max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    answer = shared.post("/v1/messages", body | {"thinking": {"type": "enabled", "budget_tokens": budget}})
    assert answer.status_code == status
    assert status == 200 or "greater than 'thinking.budget_tokens'" in answer.json()["error"]["message"]


REGEX = {"type": "regex", "regex": "[ab]{2}"}
FUNCTION = {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
FORMAT = {"type": "json_schema", "schema": FUNCTION["parameters"]}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"response_format": REGEX}, "response_format"),
        ("/v1/chat/completions", {"guided_regex": "[ab]{2}"}, "guided_regex"),
        ("/v1/completions", {"prompt": "hi", "ebnf": 'root ::= "a"'}, "ebnf"),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": FUNCTION}]}, "tools"),
        ("/v1/chat/completions", {"functions": [FUNCTION]}, "functions"),
        ("/v1/responses", {"tools": [{"type": "function", **FUNCTION}]}, "tools"),
        ("/v1/responses", {"text": {"format": {"name": "x", **FORMAT}}}, "text.format"),
    ],
)
def test_a_grammar_that_fails_in_the_engine_blames_its_field(
    shared: LiveServer, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any], param: str
) -> None:
    def refuse(self: GrammarCompiler, grammar: Grammar) -> None:
        raise InvalidRequest("too hard", code="invalid_grammar")

    monkeypatch.setattr(GrammarCompiler, "_compile", refuse)
    error = refused(shared, path, **fields)
    assert (error["message"], error["param"]) == ("too hard", param)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_older_spelling_of_tools_is_named_as_it_is(shared: LiveServer, streamed: bool) -> None:
    function = {"name": "f", "parameters": UNENFORCEABLE, "strict": True}
    error = refused(shared, "/v1/chat/completions", functions=[{"name": "e"}, function], stream=streamed)
    assert error["param"] == "functions[1].parameters"
