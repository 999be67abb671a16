"""Fields that are not decoded with the body: what they cost, and what is still read of them."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from api.live_server import LiveServer
from api.test_bad_input import CHAT, COMPLETIONS, refusal
from twinpath.api.conversation import to_turns
from twinpath.api.raw_fields import asks_for, session_in, template_kwargs_in
from twinpath.api.schemas import (
    MAX_MESSAGES,
    MAX_METADATA_BYTES,
    MAX_PARTS,
    MAX_TEMPLATE_KWARGS_BYTES,
    MAX_TOOL_CALLS,
    ChatCompletionRequest,
    CompletionRequest,
)
from twinpath.errors import InvalidRequest

Raw = msgspec.Raw
#: Values that the collector would have to look at, one by one, were they decoded.
MANY = b"[" + b"[]," * 20_000 + b"{}]"
HEADS: dict[type, bytes] = {
    ChatCompletionRequest: b'{"messages":[{"role":"user","content":"hi"}]',
    CompletionRequest: b'{"prompt":"hi"',
}


@pytest.fixture
def still_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    yield
    if was_on:
        gc.enable()


def raw_names(struct: type) -> list[str]:
    return [field.name for field in msgspec.structs.fields(struct) if field.type is Raw]


@pytest.mark.parametrize("struct", [ChatCompletionRequest, CompletionRequest])
def test_millions_of_values_in_a_field_that_is_not_read_are_not_made(struct: type, still_collector: None) -> None:
    names = [*raw_names(struct), "an_unknown_field"]
    assert {"metadata", "guided_json"} < set(names)
    for name in names:
        body = HEADS[struct] + b',"%s":%s}' % (name.encode(), MANY)
        before = gc.get_count()[0]
        fields: Any = msgspec.json.decode(body, type=struct)
        assert gc.get_count()[0] - before < 100, name
        assert fields is not None


def test_messages_are_nothing_to_the_collector(still_collector: None) -> None:
    message = b'{"role":"assistant","content":"a","function_call":{"name":"f","arguments":"{}"}}'
    body = b'{"messages":[' + b",".join([message] * 1000) + b"]}"
    before = gc.get_count()[0]
    fields = msgspec.json.decode(body, type=ChatCompletionRequest)
    assert gc.get_count()[0] - before < 100
    assert len(fields.messages) == 1000


def test_many_values_are_ignored_or_refused_as_few_would_be(server: LiveServer) -> None:
    for path, head in ((CHAT, HEADS[ChatCompletionRequest]), (COMPLETIONS, HEADS[CompletionRequest])):
        for name in ("metadata", "an_unknown_field"):
            answer = server.post(path, head + b',"%s":%s}' % (name.encode(), MANY))
            assert answer.status_code == 200
    for name in ("tools", "functions", "guided_json", "audio", "response_format"):
        error = refusal(server.post(CHAT, HEADS[ChatCompletionRequest] + b',"%s":%s}' % (name.encode(), MANY)))
        assert error["param"].partition("[")[0] == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("null", False),
        ("[]", False),
        ("[\n ]", False),
        ('"auto"', False),
        ('"required"', True),
        ("[{}]", True),
        ("0", True),
        ('"\udcff"', True),
        ("[" + " " * 300 + "]", True),
    ],
)
def test_what_asks_for_something(text: str, expected: bool) -> None:
    assert asks_for(Raw(text.encode(errors="surrogateescape")), ([], "auto")) is expected


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("", None),
        ("null", None),
        ('{"session_id": "s1", "other": [[]]}', "s1"),
        ('{"session_id": null}', None),
        ('{"session_id": 5}', None),
        ('["session_id"]', None),
        ('"session_id"', None),
        ('{"session_id": "s1", "pad": "' + "x" * MAX_METADATA_BYTES + '"}', None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_session_ids_in_metadata(metadata: str, expected: str | None) -> None:
    assert session_in(Raw(metadata.encode())) == expected


def test_template_kwargs_are_an_object_of_bounded_size() -> None:
    assert template_kwargs_in(Raw(b"")) is None
    assert template_kwargs_in(Raw(b"null")) is None
    assert template_kwargs_in(Raw(b'{"a": [1, null]}')) == {"a": [1, None]}
    largest = b'{"a":"' + b"x" * (MAX_TEMPLATE_KWARGS_BYTES - 8) + b'"}'
    assert template_kwargs_in(Raw(largest)) is not None
    for wrong in (b"[]", b"5", b'"a"', largest + b" ", b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"):
        with pytest.raises(InvalidRequest) as refused:
            template_kwargs_in(Raw(wrong))
        assert refused.value.param == "chat_template_kwargs"


def conversation(num_messages: int, *, calls: int = 0, parts: int = 0) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": ""}] * parts or ""}
    if calls:
        message["tool_calls"] = [{"function": {"name": "f"}}] * calls
    return {"messages": [message] * num_messages}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (conversation(MAX_MESSAGES + 1), str(MAX_MESSAGES)),
        (conversation(2, calls=MAX_TOOL_CALLS // 2 + 1), "10002 tool calls"),
        (conversation(2, parts=MAX_PARTS // 2 + 1), "10002 content parts"),
    ],
    ids=["messages", "calls", "parts"],
)
def test_conversations_of_too_many_pieces_are_refused(server: LiveServer, body: dict[str, Any], what: str) -> None:
    error = refusal(server.post(CHAT, body))
    assert error["param"] == "messages"
    assert what in error["message"]


@pytest.mark.parametrize(
    "body",
    [conversation(MAX_MESSAGES), conversation(2, calls=MAX_TOOL_CALLS // 2), conversation(2, parts=MAX_PARTS // 2)],
    ids=["messages", "calls", "parts"],
)
def test_conversations_of_as_many_pieces_as_allowed_are_read(body: dict[str, Any]) -> None:
    fields = msgspec.json.decode(json.dumps(body).encode(), type=ChatCompletionRequest)
    assert len(to_turns(fields.messages)) == len(body["messages"])
