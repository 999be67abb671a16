"""Grammar -> the text that the grammar engine compiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import llguidance.gbnf_to_lark
import msgspec
from llguidance import LLMatcher

from twinpath.errors import InvalidRequest
from twinpath.grammar.structure import ToolGrammar
from twinpath.types import Grammar

#: Cuts a literal at the control tokens that it spells: (text, token id or None).
Split = Callable[[str], Iterable[tuple[str, int | None]]]

#: Between reasoning and the answer.
_GAP = "gap: /[ \\n]{0,2}/\n"
_choices = msgspec.json.Decoder(list[str])
_tools = msgspec.json.Decoder(ToolGrammar)


def plain(text: str) -> Iterable[tuple[str, int | None]]:
    """The `Split` of a vocabulary without control tokens."""
    return [(text, None)] if text else []


def to_engine_text(grammar: Grammar, split: Split) -> str:
    """Raises: InvalidRequest when the text of a Lark or EBNF grammar cannot be read."""
    if grammar.kind == "json_schema" and not grammar.free_until:
        try:
            return LLMatcher.grammar_from_json_schema(grammar.source)
        except ValueError as error:  # Its parser is nested less deeply than ours.
            raise InvalidRequest(f"The grammar cannot be used: {error}", code="invalid_grammar") from None
    main, others = _lark_of(grammar, split)
    if grammar.free_until:
        main = main.replace("start:", "answer:", 1)
        start = "free gap answer"
        if grammar.free_from:
            start = f"({_literal(grammar.free_from, split)} free gap)? answer"
        main = f"start: {start}\n{_free(grammar.free_until, split)}{_GAP}{main}"
    if not others:
        return LLMatcher.grammar_from_lark(main)
    return json.dumps({"grammars": [{"name": "main", "lark_grammar": main}, *others]})


def _lark_of(grammar: Grammar, split: Split) -> tuple[str, list[dict[str, str]]]:
    """A Lark grammar, and a grammar that it refers to as @user."""
    match grammar.kind:
        case "json_schema":
            return f"start: %json {grammar.source}\n", []
        case "regex":
            return f"start: /{_slashes_escaped(grammar.source)}/\n", []
        case "choice":
            return "start: CHOICE\nCHOICE: " + " | ".join(map(_quoted, _choices.decode(grammar.source))) + "\n", []
        case "tools":
            return _tools_lark(_tools.decode(grammar.source), split)
        case "lark":
            return "start: @user\n", [{"name": "user", "lark_grammar": lark_text(grammar.source)}]


def _tools_lark(tools: ToolGrammar, split: Split) -> tuple[str, list[dict[str, str]]]:
    calls = " | ".join(f"call{index}" for index in range(len(tools.calls)))
    more = f" ({_literal(tools.separator, split)} call)*"
    if tools.max_calls is not None:
        more = f" ({_literal(tools.separator, split)} call){{0,{tools.max_calls - 1}}}" if tools.max_calls > 1 else ""
    rules = [f"call: {calls}"]
    for index, call in enumerate(tools.calls):
        begin = call.begin
        if tools.trigger and not tools.prefix and index == 0 and not begin.startswith(tools.trigger):
            raise InvalidRequest("a tool call does not start with its format's trigger", param="tools")
        arguments = "%json " + json.dumps(call.schema)
        rules.append(f"call{index}: {_literal(begin, split)} args{index} {_literal(call.end, split)}")
        rules.append(f"args{index}: {arguments}")
    all_calls = f"{_literal(tools.prefix, split)} call{more} {_literal(tools.suffix, split)}"
    if tools.otherwise is not None:
        other, others = _lark_of(tools.otherwise, split)
        rules.append(other.replace("start:", "other:", 1))
        return "\n".join([f"start: calls | other\ncalls: {all_calls}", *rules]), others
    if not tools.trigger:
        return "\n".join([f"start: {all_calls}", *rules, ""]), []
    return "\n".join([_optional_calls(tools, split, more), *rules, ""]), []


def _optional_calls(tools: ToolGrammar, split: Split, more: str) -> str:
    """Free text that the trigger ends; what follows the trigger is the rest of the first call."""
    rest = tools.prefix.removeprefix(tools.trigger)
    first = "call"
    rules = []
    if not tools.prefix:
        rest, first = "", "first"
        rules.append("first: " + " | ".join(f"first{index}" for index in range(len(tools.calls))))
        for index, call in enumerate(tools.calls):
            begin = _literal(call.begin.removeprefix(tools.trigger), split)
            rules.append(f"first{index}: {begin} args{index} {_literal(call.end, split)}")
    parts = list(split(tools.trigger))
    if any(token is not None for _, token in parts):
        rules.append("text: TEXT\nTEXT: /(?s:.*)/")
        start = f"start: text | text {_literal(tools.trigger, split)}"
    else:
        pattern = _regex_literal(tools.trigger)
        rules.append(f"text: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*){pattern}(?s:.*)/\nlead[lazy]: /(?s:.*){pattern}/")
        start = "start: text | lead"
    return "\n".join([f"{start} {_literal(rest, split)} {first}{more} {_literal(tools.suffix, split)}", *rules])


def _free(marker: str, split: Split) -> str:
    parts = list(split(marker))
    if any(token is not None for _, token in parts):
        return f"free: FREE {_literal(marker, split)}\nFREE: /(?s:.*)/\n"
    return f"free[lazy]: /(?s:.*){_regex_literal(marker)}/\n"


def _literal(text: str, split: Split) -> str:
    return " ".join(_quoted(part) if token is None else f"<[{token}]>" for part, token in split(text))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _regex_literal(text: str) -> str:
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _slashes_escaped(pattern: str) -> str:
    """The pattern as it stands between two slashes, in one line."""
    escaped, out = False, []
    for character in pattern:
        if character == "\n":
            out.append("n" if escaped else "\\n")
        else:
            out.append("\\/" if character == "/" and not escaped else character)
        escaped = character == "\\" and not escaped
    return "".join(out)


def lark_text(text: str) -> str:
    """Lark as it is; EBNF of the `::=` kind is translated."""
    if "::=" not in text:
        return text
    try:
        return llguidance.gbnf_to_lark.gbnf_to_lark(text)
    except Exception as error:  # Of an unknown rule the translator says no more than that.
        raise InvalidRequest(f"Invalid grammar: {error}", param="grammar", code="invalid_grammar") from None
