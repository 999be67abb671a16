"""What callers' schemas become, and which are refused where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twinpath.grammar import GrammarChecker, SchemaRefused, parse_schema, schema_grammar
from twinpath.grammar.schema import MAX_DEPTH, MAX_ENUM, MAX_PROPERTIES, MAX_SCHEMA_BYTES, prepare_schema


def prepared(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    found = prepare_schema(schema, strict=strict, param="response_format")
    del found["x-guidance"]
    return found


def refused(schema: Any, *, strict: bool = True) -> SchemaRefused:
    with pytest.raises(SchemaRefused) as caught:
        GrammarChecker().check(schema_grammar(schema, strict=strict, param="response_format"), "response_format")
    assert caught.value.status == 400 and caught.value.param == "response_format"
    return caught.value


def test_an_object_that_lists_properties_is_closed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}}
    found = prepared(schema)
    assert found["additionalProperties"] is False
    assert found["properties"]["a"]["additionalProperties"] is False
    assert "additionalProperties" not in schema, "the caller's schema stays as it is"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {}},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
    ],
)
def test_an_object_that_says_more_stays_open(schema: dict[str, Any]) -> None:
    assert prepared(schema).get("additionalProperties") is not False


def test_schemas_that_are_combined_stay_open() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "integer"}}}],
        "$defs": {"base": {"properties": {"a": {"type": "integer"}}}},
    }
    found = prepared(schema)
    assert "additionalProperties" not in found["allOf"][1]
    assert "additionalProperties" not in found["$defs"]["base"]


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "object", "properties": {"a": {"type": "notatype"}}}, "/properties/a"),
        ({"type": "object", "properties": {"a/b": {"not": {}}}}, "/properties/a~1b/not"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"if": {}}]}}, "/items/anyOf/1/if"),
        ({"$ref": "#/$defs/gone"}, "/$ref"),
        ({"$ref": "http://elsewhere/schema"}, "/$ref"),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "/properties/a/pattern"),
        ({"properties": {"a": {"type": "string", "format": "iri"}}}, "/properties/a/format"),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
        ({"type": "integer", "multipleOf": 1001}, "/multipleOf"),
        ({"enum": []}, "/enum"),
        ({"anyOf": []}, "/anyOf"),
        ({"properties": {"a": 5}}, "/properties/a"),
        ({"$ref": "#"}, ""),
    ],
)
def test_a_refusal_says_where(schema: Any, path: str) -> None:
    assert refused(schema).path == path


@pytest.mark.parametrize("keyword", ["not", "if", "contains", "propertyNames", "unevaluatedProperties"])
def test_what_cannot_be_enforced_is_dropped_when_not_strict(keyword: str) -> None:
    assert keyword not in prepared({"type": "object", keyword: {}}, strict=False)


@pytest.mark.parametrize("schema", [{"type": "notatype"}, {"$ref": "#/$defs/gone"}, {"enum": 5}])
def test_what_is_wrong_is_refused_when_not_strict_too(schema: Any) -> None:
    refused(schema, strict=False)


def test_keywords_that_ask_for_nothing_pass() -> None:
    schema = {"uniqueItems": False, "unevaluatedProperties": True, "title": "t", "default": 1, "minItems": 2.0}
    assert prepared(schema) == {"title": "t", "default": 1, "minItems": 2}


def test_engine_options_of_the_caller_are_ignored() -> None:
    schema = {"x-guidance": {"lenient": True}, "not": {}}
    assert refused(schema).path == "/not"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE: dict[str, tuple[Any, bool]] = {
    "refers to itself": ({"$ref": "#"}, False),
    "two refer to each other": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        False,
    ),
    "cycle in anyOf": ({"anyOf": [{"$ref": "#"}]}, False),
    "an object in itself": ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, False),
    "a list in itself": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, False),
    "a list that may be empty": ({"type": "array", "items": {"$ref": "#"}}, True),
    "one that ends beside one that does not": (
        {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"type": "null"}]},
        True,
    ),
    "recursion that ends": (
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        True,
    ),
    "forty levels of two references": (
        {
            "$ref": "#/$defs/n0",
            "$defs": {
                **{
                    f"n{i}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/n{i + 1}"} for k in "ab"}}
                    for i in range(40)
                },
                "n40": {"type": "string"},
            },
        },
        True,
    ),
    "nested 300 deep": (nested(300), False),
    "a constant nested 400 deep": ({"const": nested(200)}, False),
    "20,000 values": ({"enum": [f"value_{i}" for i in range(MAX_ENUM)]}, True),
    "20,001 values": ({"enum": list(range(MAX_ENUM + 1))}, False),
    "1,000 properties": ({"properties": {f"p{i}": {"type": "string"} for i in range(MAX_PROPERTIES)}}, True),
    "5,000 properties": ({"type": "object", "properties": {f"p{i}": {} for i in range(5000)}}, False),
    "nested quantifiers": ({"type": "string", "pattern": "^(a+)+$"}, True),
    "exponential in a DFA": ({"type": "string", "pattern": "^(a|b)*a(a|b){20}$"}, True),
    "counters in counters": ({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}, False),
    "allOf of anyOf": (
        {"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(4)]} for i in range(8)]},
        False,
    ),
    "a large divisor": ({"type": "integer", "multipleOf": 1_000_003}, False),
    "a long string": ({"type": "string", "minLength": 1_000_000}, True),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_judged(name: str) -> None:
    schema, passes = HOSTILE[name]
    if passes:
        GrammarChecker().check(schema_grammar(schema, strict=True, param="response_format"), "response_format")
    else:
        refused(schema)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 50_000,
        b'{"properties":{"a":' * 5_000 + b"{}" + b"}}" * 5_000,
        b'{"type": "object"',
        b" " * MAX_SCHEMA_BYTES + b"{}",
    ],
    ids=["50,000 brackets", "nested 5,000 deep", "cut", "too long"],
)
def test_text_that_is_no_schema_is_refused(text: bytes) -> None:
    with pytest.raises(SchemaRefused):
        parse_schema(text, "response_format")


def test_depth_is_bounded() -> None:
    GrammarChecker().check(schema_grammar(nested(MAX_DEPTH), strict=True, param="p"), "p")
    with pytest.raises(SchemaRefused, match="deep"):
        prepared(nested(MAX_DEPTH + 1))


def test_keys_come_in_the_order_of_properties() -> None:
    source = json.loads(schema_grammar({"properties": {"b": {}, "a": {}}}, strict=True, param="p").source)
    assert list(source["properties"]) == ["b", "a"]


def test_what_no_reference_reaches_need_not_be_followed() -> None:
    def schema(reference: str, definition: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"a": {"$ref": reference}},
            "$defs": {"b": {"type": "string"}, "x": definition},
        }

    spare = {"not": {"type": "null"}}
    GrammarChecker().check(schema_grammar(schema("#/$defs/b", spare), strict=True, param="p"), "p")
    for reference, definition in (
        ("#/$defs/x", spare),
        ("#%2F$defs%2Fx", spare),
        ("#here", {"$anchor": "here", **spare}),
        ("http://a/x.json", {"$id": "http://a/x.json", **spare}),
        ("#/$defs/x/not", {"not": {"type": "array", "uniqueItems": True}}),
    ):
        assert refused(schema(reference, definition)).path
