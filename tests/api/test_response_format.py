"""`response_format` and its relatives: enforced in every mode, refused with the place before any header."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import openai
import pydantic
import pytest
from benchmarks.hostile_schemas import HOSTILE_SCHEMAS, hostile_body

from api.live_server import MODEL, LiveServer, Setup, live_server
from api.streams import both, parse
from twinpath.engine.scripted import Script, ScriptedShape

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCRIPTS = (
    Script(match="[person]", text='{"name": "Ann", "age": 41}', chunks=(1, 3)),
    Script(match="[blanks]", text=" ", repeat=300),
    Script(match="[newlines]", text="\n", repeat=300),
    Script(match="[talk]", text="Sure! Here is what you asked for: " * 9),
    Script(match="[think]", text='<think>{"a" of course</think>\n{"name": "Ann", "age": 41}'),
    Script(match="[long]", text="x" * 1200, chunks=(1,), step_ms=1.0),
)


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    server = LiveServer(Setup(scripts=SCRIPTS, shape=ScriptedShape(max_slots=16)))
    yield server
    server.close()


@pytest.fixture
def server(shared: LiveServer) -> Iterator[LiveServer]:
    yield shared
    shared.at_rest()


def schema_format(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}


def ask(server: LiveServer, prompt: str, **fields: Any) -> tuple[str, str]:
    """Content and finish reason, the same whole and streamed."""
    _, answer = both(server, prompt, temperature=0, **fields)
    (choice,) = answer["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def test_an_answer_that_fits_comes_as_it_is(server: LiveServer) -> None:
    assert ask(server, "[person]", response_format=schema_format(PERSON)) == ('{"name": "Ann", "age": 41}', "stop")


def test_a_model_that_talks_is_held_to_the_schema(server: LiveServer) -> None:
    text, reason = ask(server, "[talk]", response_format=schema_format(PERSON), max_tokens=60)
    assert set(json.loads(text)) == {"name", "age"} and reason == "length"


@pytest.mark.parametrize("prompt", ["[blanks]", "[newlines]"])
@pytest.mark.parametrize("strict", [True, False])
def test_blanks_do_not_run_on(server: LiveServer, prompt: str, strict: bool) -> None:
    """B1-19: the engine ranks a blank first wherever it is legal."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, 2]}}, "required": ["a", "b"]}
    text, reason = ask(server, prompt, response_format=schema_format(schema, strict=strict), max_tokens=200)
    assert set(json.loads(text)) == {"a", "b"} and reason == "stop"
    assert "  " not in text and "\n" not in text and text.endswith("}")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "choice", "choice": ["no", "maybe"]}}, "maybe"),
        ({"response_format": {"type": "regex", "regex": "[0-9]{3}-[xy]"}}, "000-x"),
        ({"response_format": {"type": "grammar", "grammar": 'start: "(" start? ")"'}}, "()"),
        ({"guided_choice": ["no", "maybe"]}, "maybe"),
        ({"guided_regex": "[0-9]{3}-[xy]"}, "000-x"),
        ({"guided_grammar": 'root ::= "(" root? ")"'}, "()"),
        ({"guided_json": {"const": {"a": 1}}}, '{"a":1}'),
        ({"structured_outputs": {"choice": ["no", "maybe"]}}, "maybe"),
        ({"structured_outputs": {"json": '{"const": {"a": 1}}'}}, '{"a":1}'),
        ({"structured_outputs": {"json_object": True}, "max_tokens": 2}, "{}"),
        ({"response_format": {"type": "json_object"}, "max_tokens": 2}, "{}"),
        ({"response_format": {"type": "json_object", "schema": {"const": {"a": 1}}}}, '{"a":1}'),
        ({"json_schema": {"const": {"a": 1}}}, '{"a":1}'),
        ({"regex": "q+"}, "q" * 50),
        ({"grammar": 'start: "(" start? ")"', "ebnf": None}, "()"),
    ],
)
def test_every_spelling_is_enforced(server: LiveServer, fields: dict[str, Any], expected: str) -> None:
    prompt = "[talk]" if expected != "maybe" else "maybe"
    text, _ = ask(server, prompt, **{"max_tokens": 50, **fields})
    if expected == "()":
        assert text.count("(") == text.count(")") > 0
    elif expected == "maybe":
        assert text in ("no", "maybe")
    else:
        assert text.replace(": ", ":") == expected


@pytest.mark.parametrize(
    "fields", [{"guided_choice": ["red", "blue"]}, {"response_format": {"type": "choice", "choice": ["red", "blue"]}}]
)
def test_completions_are_held_too(server: LiveServer, fields: dict[str, Any]) -> None:
    answer = server.complete(["a", "b"], max_tokens=9, **fields).json()
    assert {choice["text"] for choice in answer["choices"]} <= {"red", "blue"}
    answer = server.complete("a", max_tokens=9, stream=True, **fields)
    assert "".join(choice["text"] for choice in parse(answer.text).choices()) in ("red", "blue")


def test_text_and_null_ask_for_nothing(server: LiveServer) -> None:
    for value in ({"type": "text"}, None):
        assert ask(server, "hello", response_format=value, guided_json=None)[0] == "Paris is the capital."


def test_every_choice_and_every_logprob_is_of_the_grammar(server: LiveServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "[person]"}],
        "response_format": schema_format(PERSON),
        "n": 3,
        "logprobs": True,
        "max_tokens": 40,
    }
    answer = server.post("/v1/chat/completions", body).json()
    for choice in answer["choices"]:
        assert json.loads(choice["message"]["content"])["age"] == 41
        tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert "".join(tokens) == choice["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "object", "properties": {"a": {"type": "notatype"}}}, "/properties/a"),
        ({"type": "string", "pattern": "(?!x)y"}, "/pattern"),
        ({"properties": {"a": {"contains": {}}}}, "/properties/a/contains"),
    ],
)
def test_what_cannot_be_enforced_is_refused_before_any_header(
    server: LiveServer, schema: Any, path: str, stream: bool
) -> None:
    """B1-18."""
    answer = server.chat("[person]", response_format=schema_format(schema), stream=stream)
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["param"].startswith("response_format") and f"'{path}'" in error["message"]


def test_a_pattern_with_a_needless_escape_is_taken(server: LiveServer) -> None:
    """B1-18's other input: this engine can."""
    schema = {"type": "string", "pattern": "^hello\\!$"}
    assert ask(server, "[talk]", response_format=schema_format(schema))[0] == '"hello!"'


def test_reasoning_stays_free_and_the_answer_after_it_is_held() -> None:
    with live_server(Setup(scripts=SCRIPTS, reasoning_format="think")) as server:
        _, answer = both(server, "[think]", response_format=schema_format(PERSON))
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"] == '{"a" of course'
        assert json.loads(message["content"]) == {"name": "Ann", "age": 41}


class Person(pydantic.BaseModel):
    """What the SDK makes a strict schema of."""

    name: str
    age: int


def test_the_openai_client_parses(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "[person]"}]
        answer = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Person)
        assert answer.choices[0].message.parsed == Person(name="Ann", age=41)
        with client.chat.completions.stream(model=MODEL, messages=messages, response_format=Person) as events:
            assert events.get_final_completion().choices[0].message.parsed == Person(name="Ann", age=41)
        with pytest.raises(openai.LengthFinishReasonError) as cut:
            client.chat.completions.parse(model=MODEL, messages=messages, response_format=Person, max_tokens=22)
        assert set(json.loads(cut.value.completion.choices[0].message.content or "")) == {"name", "age"}


def test_close_outs_are_counted(server: LiveServer) -> None:
    name = "twinpath:grammar_closed_out_total"
    before = server.gauges()[name]  # Of the latest heartbeat.
    ask(server, "[talk]", response_format={"type": "json_object"}, max_tokens=12)
    server.wait_until(lambda: server.gauges()[name] >= before + 2, "two close-outs")


def test_hostile_schemas_are_judged_while_another_stream_gets_its_tokens(server: LiveServer) -> None:
    """How long each takes is `benchmarks.hostile_schemas`'s to say."""
    num_arrived, over = 0, threading.Event()

    def read() -> None:
        nonlocal num_arrived
        body = {"messages": [{"role": "user", "content": "[long]"}], "stream": True, "max_tokens": 1200}
        with server.client() as client:
            while not over.is_set():
                with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    for line in answer.iter_lines():
                        num_arrived += line.startswith("data: {")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        server.wait_until(lambda: num_arrived > 5, "the stream runs")
        for name, schema in HOSTILE_SCHEMAS.items():
            num_before = num_arrived
            answer = server.post("/v1/chat/completions", hostile_body(schema, "[talk]"))
            assert answer.status_code in (200, 400), (name, answer.text)
            if answer.status_code == 400:
                # None: nested deeper than any body may be.
                assert (answer.json()["error"]["param"] or "response_format").startswith("response_format")
            elif (choice := answer.json()["choices"][0])["finish_reason"] == "stop":
                right, value = json.loads(schema), json.loads(choice["message"]["content"])
                # Some of the patterns are more than a validator takes.
                pattern = right.pop("pattern", "")
                assert jsonschema_rs.is_valid(right, value) and re.search(pattern, str(value))
            server.wait_until(lambda seen=num_before: num_arrived > seen, f"its tokens come after {name}")
    finally:
        over.set()
        reader.join()


def test_hostile_schemas_are_judged_before_any_header_of_a_stream(server: LiveServer) -> None:
    for name, schema in HOSTILE_SCHEMAS.items():
        body = hostile_body(schema, "[talk]")
        whole = server.post("/v1/chat/completions", body)
        streamed = server.post("/v1/chat/completions", body[:-1] + b',"stream":true}')
        assert streamed.status_code == whole.status_code, name
        if whole.status_code == 400:
            assert streamed.json() == whole.json()
        else:
            assert parse(streamed.text).text == whole.json()["choices"][0]["message"]["content"]
