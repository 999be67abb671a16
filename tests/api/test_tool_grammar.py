"""What a grammar made for tools lets through: calls that fit, as the format spells them, and nothing else."""

from __future__ import annotations

from typing import Any

import llguidance
import pytest

from twinpath.api.schemas import ToolFunction
from twinpath.api.tool_fields import ToolUse
from twinpath.api.tool_grammar import tools_grammar
from twinpath.errors import InvalidRequest
from twinpath.grammar.completion import byte_vocabulary
from twinpath.grammar.source import plain, to_engine_text
from twinpath.text.answer import REASONING_FORMATS, TOOL_FORMATS, AnswerFormat
from twinpath.types import Grammar

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = ToolFunction(name="get.weather", parameters=CITY)
PING = ToolFunction(name="ping")


def use(*functions: ToolFunction, required: bool = True, max_calls: int | None = None) -> ToolUse:
    return ToolUse(functions, functions, required, max_calls)


def accepts(grammar: Grammar | None, text: str) -> bool:
    """Whether `text` is a whole word of the language."""
    assert grammar is not None
    matcher = llguidance.LLMatcher(byte_vocabulary(), to_engine_text(grammar, plain))
    tokens = list(text.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


def spelled(name: str, *calls: tuple[str, str]) -> str:
    shape = TOOL_FORMATS[name].shape
    branches = shape.structure([{"name": tool} for tool, _ in calls]).branches
    texts = [branch.begin + arguments + branch.end for branch, (_, arguments) in zip(branches, calls, strict=True)]
    return shape.opening + shape.separator.join(texts) + shape.closing


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_demanded_calls_in_every_format(name: str) -> None:
    grammar = tools_grammar(use(WEATHER, PING), AnswerFormat(TOOL_FORMATS[name], None), reasoning_open=False)
    good = ("get.weather", '{"city": "Oslo", "days": 3}')
    assert accepts(grammar, spelled(name, good))
    assert accepts(grammar, spelled(name, good, ("ping", '{"x": [1]}'), good))
    for bad in ('{"city": 3}', "{}", '{"city": "a", "more": 1}', "null"):
        assert not accepts(grammar, spelled(name, ("get.weather", bad)))
    assert not accepts(grammar, spelled(name, ("other", "{}")))
    assert not accepts(grammar, "Sure. " + spelled(name, good))
    assert not accepts(grammar, "")


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_one_call_where_one_is_wanted(name: str) -> None:
    grammar = tools_grammar(use(PING, max_calls=1), AnswerFormat(TOOL_FORMATS[name], None), reasoning_open=False)
    assert accepts(grammar, spelled(name, ("ping", "{}")))
    assert not accepts(grammar, spelled(name, ("ping", "{}"), ("ping", "{}")))


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_strict_tools_leave_text_free_and_bind_calls(name: str) -> None:
    strict = ToolFunction(name="get.weather", parameters=CITY, strict=True)
    answers = AnswerFormat(TOOL_FORMATS[name], None)
    grammar = tools_grammar(use(strict, PING, required=False), answers, reasoning_open=False)
    assert accepts(grammar, "Just text, {maybe} <so>.")
    assert accepts(grammar, "Well. " + spelled(name, ("get.weather", '{"city": "Oslo"}'), ("ping", "{}")))
    assert not accepts(grammar, "Well. " + spelled(name, ("get.weather", '{"city": 3}')))


def test_nothing_is_bound_without_need() -> None:
    answers = AnswerFormat(TOOL_FORMATS["hermes"], None)
    assert tools_grammar(use(WEATHER, PING, required=False), answers, reasoning_open=False) is None


def test_open_reasoning_is_free() -> None:
    answers = AnswerFormat(TOOL_FORMATS["hermes"], REASONING_FORMATS["think"])
    call = spelled("hermes", ("ping", "{}"))
    assert accepts(tools_grammar(use(PING), answers, reasoning_open=True), "I think <b> so.\n</think>\n\n" + call)
    assert not accepts(tools_grammar(use(PING), answers, reasoning_open=True), call)


def test_a_strict_schema_that_cannot_be_enforced_is_refused_with_its_place() -> None:
    answers = AnswerFormat(TOOL_FORMATS["hermes"], None)
    loose = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(InvalidRequest, match="/0/properties/a") as refused:
        tools_grammar(use(ToolFunction(name="f", parameters=loose, strict=True)), answers, reasoning_open=False)
    assert refused.value.param == "tools"
    grammar = tools_grammar(use(ToolFunction(name="f", parameters=loose)), answers, reasoning_open=False)
    assert accepts(grammar, spelled("hermes", ("f", '{"a": [1, 1]}')))
