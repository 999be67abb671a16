"""What a grammar made for tools lets through: calls that fit, as the format spells them, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import llguidance
import pytest
import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from twinpath.api.schemas import ToolFunction
from twinpath.api.tool_fields import ToolUse
from twinpath.api.tool_grammar import tools_grammar
from twinpath.errors import InvalidRequest
from twinpath.grammar import Vocabulary, schema_grammar
from twinpath.grammar.completion import byte_vocabulary
from twinpath.grammar.source import plain, to_engine_text
from twinpath.text.answer import REASONING_FORMATS, TOOL_FORMATS, AnswerFormat, Message, MessageCall
from twinpath.text.text_model import TextModel
from twinpath.text.tokenizer import Tokenizer, TokenizerRules, byte_alphabet
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


def spelled(name: str, *calls: tuple[str, str], marked: bool = False) -> str:
    shape = TOOL_FORMATS[name].shape
    structure = shape.structure([{"name": tool} for tool, _ in calls], marked=marked)
    branches = structure.branches
    texts = [branch.begin + arguments + branch.end for branch, (_, arguments) in zip(branches, calls, strict=True)]
    return structure.opening + shape.separator.join(texts) + shape.closing


def read(name: str, text: str) -> tuple[MessageCall, ...]:
    parser = AnswerFormat(TOOL_FORMATS[name], None).parser(tools={"get.weather": {}, "ping": {}})
    return Message.of(parser.push(text) + parser.finish()).calls


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_demanded_calls_in_every_format(name: str) -> None:
    grammar = tools_grammar(use(WEATHER, PING), AnswerFormat(TOOL_FORMATS[name], None))
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
    grammar = tools_grammar(use(PING, max_calls=1), AnswerFormat(TOOL_FORMATS[name], None))
    assert accepts(grammar, spelled(name, ("ping", "{}")))
    assert not accepts(grammar, spelled(name, ("ping", "{}"), ("ping", "{}")))


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_strict_tools_leave_text_free_and_bind_calls(name: str) -> None:
    strict = ToolFunction(name="get.weather", parameters=CITY, strict=True)
    answers = AnswerFormat(TOOL_FORMATS[name], None)
    grammar = tools_grammar(use(strict, PING, required=False), answers)
    assert accepts(grammar, "Just text, {maybe} <so>.")
    assert accepts(grammar, "Well. " + spelled(name, ("get.weather", '{"city": "Oslo"}'), ("ping", "{}")))
    assert not accepts(grammar, "Well. " + spelled(name, ("get.weather", '{"city": 3}')))


def test_nothing_is_bound_without_need() -> None:
    answers = AnswerFormat(TOOL_FORMATS["hermes"], None)
    assert tools_grammar(use(WEATHER, PING, required=False), answers) is None


@pytest.mark.parametrize("name", ["hermes", "smollm2", "kimi_k2"])
def test_reasoning_is_free_before_calls_and_before_text(name: str) -> None:
    answers = AnswerFormat(TOOL_FORMATS[name], REASONING_FORMATS["think"])
    call, thought = spelled(name, ("ping", "{}")), "I think <b> so.\n</think>\n\n"
    opened = tools_grammar(use(PING), answers, free_until="</think>")
    assert accepts(opened, thought + call) and not accepts(opened, call)
    closed = tools_grammar(use(PING), answers, free_until="</think>", free_from="<think>")
    assert accepts(closed, "<think>" + thought + call) and accepts(closed, call) and not accepts(closed, thought + call)
    strict = ToolFunction(name="ping", strict=True)
    free = tools_grammar(use(strict, required=False), answers, free_until="</think>")
    assert accepts(free, thought + call) and accepts(free, thought + "Text.")


JSON_ANSWER = schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}}, strict=False, param="x")


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
@pytest.mark.parametrize("marks", [{}, {"free_until": "</think>"}], ids=["plain", "reasoning"])
def test_calls_or_an_answer_in_the_demanded_form(name: str, marks: dict[str, str]) -> None:
    thought = "Hm.</think>" if marks else ""
    answers = AnswerFormat(TOOL_FORMATS[name], None)
    for tool in (WEATHER, ToolFunction(name="get.weather", parameters=CITY, strict=True)):
        grammar = tools_grammar(use(tool, PING, required=False), answers, otherwise=JSON_ANSWER, **marks)
        assert accepts(grammar, thought + '{"a": 1}')
        calls = spelled(name, ("get.weather", '{"city": "Oslo"}'), ("ping", "{}"), marked=True)
        assert accepts(grammar, thought + calls)
        assert [call.name for call in read(name, calls)] == ["get.weather", "ping"]
        assert not accepts(grammar, thought + "Text.") and not accepts(grammar, thought + '{"a": "1"}')
        assert not accepts(grammar, thought + spelled(name, ("get.weather", '{"city": 3}'), marked=True))
    demanded = tools_grammar(use(PING), answers, otherwise=JSON_ANSWER, **marks)
    assert not accepts(demanded, thought + '{"a": 1}')


@pytest.mark.parametrize(
    ("otherwise", "good", "bad"),
    [
        (Grammar("regex", "[0-9]{3}/x"), "123/x", "12/x"),
        (Grammar("choice", '["yes", "no"]'), "no", "maybe"),
        (Grammar("lark", 'start: "a" NUMBER\nNUMBER: /[0-9]+/'), "a12", "b"),
    ],
)
def test_the_demanded_form_may_be_any_language(otherwise: Grammar, good: str, bad: str) -> None:
    answers = AnswerFormat(TOOL_FORMATS["hermes"], None)
    for marks in ({}, {"free_until": "</think>", "free_from": "<think>"}):
        grammar = tools_grammar(use(PING, required=False), answers, otherwise=otherwise, **marks)
        assert (
            accepts(grammar, good) and accepts(grammar, spelled("hermes", ("ping", "{}"))) and not accepts(grammar, bad)
        )


def test_a_strict_schema_that_cannot_be_enforced_is_refused_with_its_place() -> None:
    answers = AnswerFormat(TOOL_FORMATS["hermes"], None)
    loose = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(InvalidRequest, match="'/properties/a") as refused:
        tools_grammar(use(ToolFunction(name="f", parameters=loose, strict=True)), answers)
    assert refused.value.param == "tools[0].function.parameters"
    grammar = tools_grammar(use(ToolFunction(name="f", parameters=loose)), answers)
    assert accepts(grammar, spelled("hermes", ("f", '{"a": [1, 1]}')))


SPECIAL_MARKS = sorted(
    {mark for form in TOOL_FORMATS.values() for mark in form.marks} - {"<tool_call>", "</tool_call>"}
)


@pytest.mark.parametrize("name", ["mistral", "mistral_v11", "deepseek_v3", "deepseek_v31", "kimi_k2", "tool_call_list"])
def test_marks_that_are_control_tokens_are_demanded_as_tokens(name: str) -> None:
    text = marked_model(tuple(SPECIAL_MARKS))
    vocabulary = Vocabulary(text.tokenizer, text.tokenizer.vocab_size, text.stop_token_ids)
    grammar = tools_grammar(use(PING), AnswerFormat(TOOL_FORMATS[name], None))
    assert grammar is not None
    engine_text = to_engine_text(grammar, vocabulary.split)
    answer = spelled(name, ("ping", '{"a": 1}'))
    tokens = text.tokenizer.encode_prompt(answer)
    assert any(token in text.tokenizer.special_ids for token in tokens)
    matcher = llguidance.LLMatcher(vocabulary.engine, engine_text)
    assert matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()
    # The same characters as plain text are not what the model would write.
    plain_tokens = text.tokenizer.encode(answer)
    assert llguidance.LLMatcher(vocabulary.engine, engine_text).validate_tokens(plain_tokens) < len(plain_tokens)
    # And the parser is shown them.
    text = replace(text, answers=AnswerFormat(TOOL_FORMATS[name], None))
    assert [call.arguments for call in read(name, text.answer_detokenizer().push(tokens))] == ['{"a": 1}']


def marked_model(special: tuple[str, ...]) -> TextModel:
    vocabulary = byte_alphabet() | {token: 256 + n for n, token in enumerate(("</s>", *special))}
    backend = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>", *special])
    rules = TokenizerRules("byte_level", vocab_size=len(vocabulary))
    return TextModel(tokenizer=Tokenizer(backend, rules), template=None, stop_token_ids=(256,), max_model_len=4096)
