"""Answers drawn at random under a grammar: always words of it, also when their tokens run out."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest

from twinpath.grammar import CallForm, ToolGrammar, any_object, schema_grammar
from twinpath.types import Grammar

from .conftest import CONTROL, CONTROL_TEXT, END, Sayer

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "nick": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["alpha", "beta", "alphabet soup"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "minItems": 2},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "age", "kind", "tags"],
}
#: Tokens of the shortest PERSON in the test's vocabulary, and room for those that are drawn badly.
SHORTEST_PERSON = 60


def is_person(text: str) -> bool:
    return bool(jsonschema_rs.is_valid(PERSON, json.loads(text)))


def is_json(text: str) -> bool:
    return isinstance(json.loads(text), dict)


CALLS = ToolGrammar(
    calls=(
        CallForm('<call>{"name": "f", "arguments": ', {"properties": {"a": {"const": 1}}}, "}</call>"),
        CallForm('<call>{"name": "gg", "arguments": ', {}, "}</call>"),
    ),
    separator="\n",
)  # fmt: skip


def is_calls(text: str) -> bool:
    calls = re.findall(r"<call>(.*?)</call>", text, re.DOTALL)
    return bool(calls) and text.endswith("</call>") and all({"name", "arguments"} == set(json.loads(c)) for c in calls)


LANGUAGES = {
    "schema": (schema_grammar(PERSON, strict=True, param="p"), SHORTEST_PERSON, is_person),
    "any object": (any_object(), 4, is_json),
    "pattern": (
        Grammar("regex", "[a-z]{3}-[0-9]{2,5}(foo|barbaz)+"), 16,
        lambda text: re.fullmatch("[a-z]{3}-[0-9]{2,5}(foo|barbaz)+", text),
    ),
    "choice": (
        Grammar("choice", '["yes","no","maybe tomorrow"]'), 14, lambda text: text in ("yes", "no", "maybe tomorrow")
    ),
    "lark": (
        Grammar("lark", 'start: "a" b* "c"\nb: "[" b* "]"'), 8,
        lambda text: text[0] == "a" and text[-1] == "c" and text.count("[") == text.count("]"),
    ),
    "ebnf": (
        Grammar("lark", 'root ::= "a" item* "c"\nitem ::= "[" item* "]"'), 8,
        lambda text: text[0] == "a" and text[-1] == "c" and text.count("[") == text.count("]"),
    ),
    "calls": (CALLS.to_grammar(), 90, is_calls),
    "calls after reasoning": (
        CALLS.to_grammar(free_until="</think>"), 110, lambda text: is_calls(text.partition("</think>")[2].lstrip())
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_answer_is_a_word_of_the_language_whenever_its_tokens_run_out(sayer: Sayer, name: str) -> None:
    grammar, shortest, is_word = LANGUAGES[name]
    rng = random.Random(name)
    num_closed_out = 0
    for seed in range(60):
        answer = sayer.say(grammar, rng.randint(shortest, 3 * shortest), seed)
        assert is_word(answer.text), answer
        num_closed_out += answer.closed_out
    assert num_closed_out or name == "choice"


@pytest.mark.parametrize("name", LANGUAGES)
def test_one_token_is_allowed_where_the_mask_has_it(sayer: Sayer, name: str) -> None:
    grammar, shortest, _ = LANGUAGES[name]
    rng = random.Random(name)
    for seed in range(6):
        constraint, num_left = sayer.constraint(grammar), 2 * shortest
        rng.seed(seed)
        while num_left and not constraint.finished:
            legal = sayer.legal(constraint, num_left)
            allowed = [token for token in range(sayer.pieces.size) if constraint.allows(token, num_left)]
            assert allowed == legal
            num_left -= constraint.accept(rng.choice(legal), num_left - 1)


@pytest.mark.parametrize("name", LANGUAGES)
def test_forced_tokens_are_those_of_masks_with_one_token(sayer: Sayer, name: str) -> None:
    """Two followers of one answer, one by masks alone: what the other takes at once, that one has no choice about."""
    grammar, shortest, is_word = LANGUAGES[name]
    rng = random.Random(name)
    num_forced = 0
    for seed in range(30):
        fast, slow = sayer.constraint(grammar), sayer.constraint(grammar)
        max_tokens = rng.randint(shortest, 3 * shortest)
        rng.seed(seed)
        tokens: list[int] = []
        while len(tokens) < max_tokens and not fast.finished:
            num_left = max_tokens - len(tokens)
            token = rng.choice(sayer.legal(slow, num_left))
            assert fast.allows(token, num_left)
            is_taken = fast.accept(token, num_left - 1)
            assert is_taken == slow.accept(token, num_left - 1)
            if not is_taken:
                continue
            if token == END:
                break
            forced = fast.take_forced(min(7, num_left - 1), num_left - 1)
            tokens.append(token)
            for token in forced:
                num_left = max_tokens - len(tokens)
                assert sayer.legal(slow, num_left) == [token] and slow.accept(token, num_left - 1)
                tokens.append(token)
            num_forced += len(forced)
        assert is_word(b"".join(map(sayer.pieces.token_bytes, tokens)).decode(errors="surrogateescape"))
    assert num_forced or name in ("any object", "ebnf", "lark")


def test_a_closed_out_answer_uses_all_its_tokens(sayer: Sayer) -> None:
    grammar = schema_grammar(PERSON, strict=True, param="p")
    answers = [sayer.say(grammar, 80, seed) for seed in range(40)]
    closed = [answer for answer in answers if answer.closed_out and not answer.num_refused]
    assert closed and all(len(answer.tokens) == 80 and answer.finished for answer in closed)


def test_an_answer_is_closed_out_with_its_first_token_when_that_is_all_there_is(sayer: Sayer) -> None:
    constraint = sayer.constraint(any_object())
    answer = sayer.finish(constraint, 1, lambda legal: legal[0])
    assert (answer.text, answer.finished, answer.closed_out) == ("{}", True, True)


def test_too_few_tokens_for_any_answer_leave_it_cut(sayer: Sayer) -> None:
    answer = sayer.say(schema_grammar(PERSON, strict=True, param="p"), 10, 1)
    assert len(answer.tokens) == 10 and not answer.finished and not answer.closed_out


def test_an_answer_with_nothing_left_to_say_is_finished_without_an_end(sayer: Sayer) -> None:
    constraint = sayer.constraint(Grammar("choice", '["ab"]'))
    answer = sayer.finish(constraint, 9, lambda legal: legal[0])
    assert answer.text == "ab" and answer.finished and not answer.closed_out


def test_the_end_is_legal_only_where_the_answer_may_end(sayer: Sayer) -> None:
    constraint = sayer.constraint(Grammar("regex", "ab*"))
    assert END not in sayer.legal(constraint, 9)
    assert constraint.accept(ord("a"), 8)
    assert END in sayer.legal(constraint, 8)
    assert constraint.accept(END, 7) and constraint.finished


def test_min_tokens_hold_the_end_back_while_something_else_may_follow(sayer: Sayer) -> None:
    constraint = sayer.constraint(Grammar("regex", "ab{0,2}"), min_tokens=9)
    for token in b"abb":
        assert END not in sayer.legal(constraint, 9)
        assert constraint.accept(token, 8)
    assert constraint.finished or sayer.legal(constraint, 6) == [END]


def test_ids_without_a_meaning_are_never_legal(sayer: Sayer) -> None:
    legal = sayer.legal(sayer.constraint(Grammar("regex", "(.|\n)*")), 9)
    assert max(legal) < sayer.pieces.vocab_size and CONTROL not in legal


def test_a_literal_that_spells_a_control_token_is_that_token(sayer: Sayer) -> None:
    tools = ToolGrammar(calls=(CallForm(CONTROL_TEXT, {}, CONTROL_TEXT),), max_calls=1)
    constraint = sayer.constraint(tools.to_grammar())
    assert sayer.legal(constraint, 20) == [CONTROL]
    answer = sayer.finish(constraint, 20, random.Random(3).choice)
    assert answer.tokens[0] == answer.tokens[-1] == CONTROL and is_json(answer.text[8:-8])


def test_a_trigger_leaves_text_free_until_it_comes(sayer: Sayer) -> None:
    tools = ToolGrammar(calls=(CallForm("<call>", {"type": "object"}, "</call>"),), trigger="<call>")
    constraint = sayer.constraint(tools.to_grammar())
    for token in b"hello <call>":
        assert ord("x") in sayer.legal(constraint, 99)
        assert constraint.accept(token, 98)
    legal = sayer.legal(constraint, 90)
    assert ord("{") in legal and ord("x") not in legal


def test_reasoning_is_free_where_the_answer_begins_with_it(sayer: Sayer) -> None:
    grammar = Grammar("choice", '["yes"]', free_until="</t>", free_from="<t>")
    free = sayer.constraint(grammar)
    for token in b"<t>whatever</t>\n":
        assert free.accept(token, 50)
    assert sayer.finish(free, 9, lambda legal: legal[-1]).text.strip() == "yes"
    assert sayer.finish(sayer.constraint(grammar), 9, lambda legal: legal[-1]).text == "yes"


def test_a_token_that_the_grammar_forbids_is_an_error_and_no_crash(sayer: Sayer) -> None:
    constraint = sayer.constraint(Grammar("choice", '["yes"]'))
    assert constraint.accept(ord("n"), 5)
    assert constraint.error is not None and sayer.legal(constraint, 5) == []


@pytest.mark.parametrize("spaces", [" ", "\n"])
def test_blanks_never_run_on(sayer: Sayer, spaces: str) -> None:
    """A model that prefers blanks wherever they are legal still ends."""
    schema = {
        "type": "object",
        "properties": {key: {"type": "boolean"} for key in ("age", "name")},
        "required": ["age", "name"],
    }
    constraint = sayer.constraint(schema_grammar(schema, strict=True, param="p"))
    answer = sayer.finish(constraint, 200, lambda legal: ord(spaces) if ord(spaces) in legal else legal[0])
    assert set(json.loads(answer.text)) == {"age", "name"} and not answer.closed_out
    assert not re.search(r"\s\s", answer.text) and answer.text == answer.text.strip()
