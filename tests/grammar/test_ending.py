"""Grammars whose words never end are refused; those that loop as languages do are not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from twinpath.errors import InvalidRequest
from twinpath.grammar import GrammarChecker
from twinpath.grammar.ending import endless_rule
from twinpath.types import Grammar

ENDLESS = {
    'start: "a" start': "start",
    'start: "a" start | start "b"': "start",
    'start: x+\nx: "a" y\ny: ("b" | "c") x': "x",
    'start: "a" | b\nb: "x" b': "b",
    'start: "a" (start | b)\nb: "b" start': "start",
    'start: x{2}\nx: "(" x ")" // no base': "x",
    'root ::= "a" root': "start",
}
ENDING = [
    'start: "a" start | "b"',
    'start: "a" start?',
    'start: "a" [start]',
    'start: "a" start*',
    'start: "a" start{0,3}',
    'start: x\nx: "(" x ")" | // a base\n',
    'start: x\nx: "(" (x | y) ")"\ny: /[0-9]+/',
    'start: "start" A\nA: /start start/',
    'start: expr\nexpr: expr "+" term | term\nterm: "(" expr ")" | NUMBER\nNUMBER: /[0-9]+/',
    'start: "a" obj\nobj: %json {"type": "object"}',
    'root ::= "a" root | "b"',
    'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")"',
]


@pytest.mark.parametrize("text", ENDLESS)
def test_a_rule_without_an_end_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        GrammarChecker().check(Grammar("lark", text), "grammar")
    assert refused.value.param == "grammar"
    assert f"'{ENDLESS[text]}'" in refused.value.message or "no word" in refused.value.message


@pytest.mark.parametrize("text", ENDING)
def test_rules_that_can_end_are_taken(text: str) -> None:
    GrammarChecker().check(Grammar("lark", text), "grammar")


def test_many_rules_in_an_awkward_order_cost_little_and_are_left_to_the_engine() -> None:
    names = [f"r{index * 7 % 3001}" for index in range(3001)]
    links = [f'{name}: "x" {below}' for name, below in pairwise(names)]
    assert endless_rule("\n".join([f"start: {names[0]}", *sorted(links), f'{names[-1]}: "y"'])) is None


def test_a_rule_that_is_not_there_is_the_request_s_fault() -> None:
    for text in ("root ::= nothing", "start: nothing"):
        with pytest.raises(InvalidRequest, match="nothing"):
            GrammarChecker().check(Grammar("lark", text), "grammar")
