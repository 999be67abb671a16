"""Repetitions are counted from the text, so that nothing large is compiled to find out."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from twinpath.errors import InvalidRequest
from twinpath.grammar import GrammarChecker, SchemaRefused, check_lark, check_pattern, schema_grammar
from twinpath.grammar.size import lark_sizes, pattern_size
from twinpath.types import Grammar

from .conftest import Sayer


@pytest.mark.parametrize(
    ("pattern", "size"),
    [("a{1000}", 1000), ("(a{1000}){1000}", 10**6), ("[a-z]{1,500}" * 3, 1500), (r"\{5\}[{}]\p{L}{3}", 7)],
)
def test_a_patterns_repetitions_are_written_out(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == size


def test_rules_refer_and_terminals_are_written_out() -> None:
    assert lark_sizes('start: b~10\nb: start B\nB: C{3}\nC: "xy"~2') == {"start": 10, "b": 13, "B": 12, "C": 4}


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", "a{1000000}", "[a-z]{1,500}" * 100])
def test_what_is_too_large_is_the_callers_fault(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_pattern(pattern, "regex")
    assert caught.value.param == "regex" and caught.value.type == "invalid_request_error"
    with pytest.raises(InvalidRequest):
        check_lark(f"start: A\nA: /{pattern}/", "grammar")
    with pytest.raises(SchemaRefused) as refused:
        schema_grammar({"type": "string", "pattern": pattern}, strict=False, param="p")
    assert refused.value.path == "/pattern"


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$id": 5, "type": "string"}, "/$id"),
        ({"type": ["string", "string"]}, "/type"),
        ({"type": "array", "items": [{"type": "string"}]}, "/items"),
        ({"anyOf": [{"$anchor": "a"}, {"$anchor": "a"}]}, "/anyOf/1/$anchor"),
        ({"type": "integer", "minimum": 2**70}, "/minimum"),
        ({"type": "string", "minLength": 10**12}, "/minLength"),
        ({"$ref": "http://elsewhere/x"}, "/$ref"),
        ({"const": "x" * 65_537}, "/const"),
        ({"properties": {"a": {"enum": ["x", "x" * 65_537]}}}, "/properties/a/enum"),
        ({"type": "string", "pattern": "^a{9}$", "maxLength": 5}, "/pattern"),
    ],
)
def test_wrong_schemas_are_refused_in_our_words(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        GrammarChecker().check(schema_grammar(schema, strict=True, param="p"), "p")
    assert caught.value.path in (path, path.rpartition("/")[0], "/maxLength")
    assert not re.search(r"Some\(|parse error|\(And|retriever", caught.value.message)


@pytest.mark.parametrize("multiple", [7, 97, 997])
def test_a_multiple_is_closed_out_as_one(sayer: Sayer, multiple: int) -> None:
    grammar = schema_grammar({"type": "integer", "multipleOf": multiple}, strict=True, param="p")
    constraint = sayer.constraint(grammar)
    answer = sayer.finish(constraint, 12, lambda legal: next((t for t in b"-1802" if t in legal), legal[0]))
    assert int(answer.text) % multiple == 0
    for seed in range(5):
        assert json.loads(sayer.say(grammar, 12, seed).text) % multiple == 0


@pytest.mark.parametrize("pattern", ["(ab)+c{5}", "([a-c]x)*[0-9]{4}-Q", r"[a-z]+@[a-z]+\.(com|org)"])
def test_patterns_are_closed_out_by_their_other_branch(sayer: Sayer, pattern: str) -> None:
    schema = schema_grammar({"type": "string", "pattern": f"^{pattern}$"}, strict=True, param="p")
    for grammar, read in ((schema, json.loads), (Grammar("regex", pattern), str)):
        answer = sayer.finish(sayer.constraint(grammar), 24, lambda legal: ord("a") if ord("a") in legal else legal[0])
        assert re.fullmatch(pattern, read(answer.text)), answer
        for seed in range(5):
            answer = sayer.say(grammar, 30, random.Random(seed).randint(0, 99))
            assert re.fullmatch(pattern, read(answer.text)), answer


#: Each made a search look to the end from every place of it: minutes, in which no other stream got a token.
UNCLOSED = [
    'start: "' + '\\"' * 32_000,
    "start: {" + "1" * 64_000,
    "start: " + "(?" * 32_000,
    "start: " + "\\p{" * 21_000,
]


@pytest.mark.parametrize("text", UNCLOSED)
def test_what_is_not_closed_is_read_once(text: str) -> None:
    for kind in ("lark", "regex"):
        with pytest.raises(InvalidRequest):
            check_pattern(text, "regex") if kind == "regex" else check_lark(text, "grammar")
            GrammarChecker().check(Grammar(kind, text), "grammar")


def test_very_many_repetitions_without_end_are_too_large() -> None:
    check_pattern(".*" * 1000, "regex")
    check_pattern("\\*" * 2000, "regex")
    with pytest.raises(InvalidRequest):
        check_pattern(".*" * 1001, "regex")
