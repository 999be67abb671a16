"""Answers that call tools, as a language: literals around JSON arguments, one of several tools, one or many calls."""

from __future__ import annotations

from typing import Any

import msgspec

from twinpath.grammar.schema import prepare_schema
from twinpath.types import Grammar


class CallForm(msgspec.Struct, frozen=True):
    """One tool: the JSON of its arguments between two literals."""

    begin: str
    schema: Any
    end: str


class ToolGrammar(msgspec.Struct, frozen=True, kw_only=True):
    """`prefix` call (`separator` call)* `suffix`, at most `max_calls` (None: any number), at least one.

    Literals are text; where they spell a control token of the vocabulary, that token is meant.
    `trigger`: calls are optional, the answer may be free text, up to the trigger (which `prefix` or every `begin`
    starts with) if it occurs. "": an answer without a call is no word of the language.
    `otherwise`: an answer without a call is a word of this one; there is no trigger then.
    """

    calls: tuple[CallForm, ...]
    prefix: str = ""
    separator: str = ""
    suffix: str = ""
    max_calls: int | None = None
    trigger: str = ""
    otherwise: Grammar | None = None

    def to_grammar(
        self, *, strict: bool = False, param: str = "tools", free_until: str = "", free_from: str = ""
    ) -> Grammar:
        """`free_until`, `free_from`: as in `Grammar`.

        Raises: SchemaRefused, with the tool's place in `calls` at the head of the path.
        """
        calls = tuple(
            CallForm(call.begin, _arguments(call.schema, index, strict, param), call.end)
            for index, call in enumerate(self.calls)
        )
        source = msgspec.json.encode(msgspec.structs.replace(self, calls=calls)).decode()
        return Grammar("tools", source, free_until, free_from)


def _arguments(schema: Any, index: int, strict: bool, param: str) -> dict[str, Any]:
    """Arguments are an object, whatever else a tool's schema says or leaves out."""
    prepared = prepare_schema(schema, strict=strict, param=param, path=f"/{index}")
    return prepared if "type" in prepared or "$ref" in prepared else prepared | {"type": "object"}
