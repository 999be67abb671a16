"""Is a grammar one that the engine will take? Asked before a request is let in."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from llguidance import LLTokenizer

from twinpath.errors import InvalidRequest
from twinpath.grammar.compiler import compile_text
from twinpath.grammar.completion import byte_vocabulary
from twinpath.grammar.ending import endless_rule
from twinpath.grammar.schema import SPACING, SchemaRefused, subschemas
from twinpath.grammar.source import lark_text, plain, to_engine_text
from twinpath.grammar.structure import ToolGrammar
from twinpath.types import Grammar

#: Of a refused schema, so many parts are tried to say which one it is.
_MAX_TRIALS = 64
_CACHED_CHECKS = 256
#: What the engine's reasons hold -> what is said of them.
_WORDS = (
    ("retriev", "it refers out of this schema, and nothing is fetched"),
    ("(And (", "no string fits both the pattern and what stands beside it, or following both is too costly"),
    ("regex parse error", "the pattern cannot be read, or is not regular"),
    ("generate regex for", "no number lies within these bounds, or they are too large to be followed"),
)


class GrammarChecker:
    """Compiles over bytes, remembers what passed. Calls may take a second: never on an event loop."""

    def __init__(self) -> None:
        self._vocabulary = byte_vocabulary()
        self._passed = lru_cache(_CACHED_CHECKS)(self._check)

    def check(self, grammar: Grammar, param: str) -> None:
        """Raises: InvalidRequest naming `param`, and for a schema the path of the part that cannot be used."""
        try:
            self._passed(grammar)
        except SchemaRefused:
            raise
        except InvalidRequest as error:
            for schema, path in _schemas(grammar):
                found = _Culprit(self._vocabulary, schema, strict="lenient" not in schema["x-guidance"]).find(path)
                if found is not None:
                    raise SchemaRefused(found[1], param=param, path=found[0]) from None
            raise InvalidRequest(error.message, param=param, code=error.code) from None

    def _check(self, grammar: Grammar) -> None:
        if grammar.kind == "lark" and (rule := endless_rule(lark_text(grammar.source))) is not None:
            message = f"The grammar cannot be used: no word of its rule '{rule}' ever ends."
            raise InvalidRequest(message, code="invalid_grammar")
        matcher = compile_text(to_engine_text(grammar, plain), self._vocabulary)
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error() or not mask.any():
            raise InvalidRequest("The grammar has no word: nothing could be answered.", code="invalid_grammar")


def _schemas(grammar: Grammar) -> list[tuple[dict[str, Any], str]]:
    if grammar.kind == "json_schema":
        return [(msgspec.json.decode(grammar.source), "")]
    if grammar.kind == "tools":
        calls = msgspec.json.decode(grammar.source, type=ToolGrammar).calls
        return [(call.schema, f"/{index}") for index, call in enumerate(calls)]
    return []


class _Culprit:
    """The smallest part of a schema that fails by itself."""

    def __init__(self, vocabulary: LLTokenizer, root: dict[str, Any], *, strict: bool) -> None:
        self._vocabulary = vocabulary
        self._root = root
        self._options = SPACING | ({} if strict else {"lenient": True})
        self._num_trials = 0

    def find(self, path: str) -> tuple[str, str] | None:
        """(path, reason); None when the schema passes."""
        reason = self._reason(self._root)
        if reason is None:
            return None
        node = self._root
        while True:
            for below, child in subschemas(node, path):
                if (inner := self._reason(child)) is not None:
                    node, path, reason = child, below, inner
                    break
            else:
                return path + self._keyword(node), reason

    def _keyword(self, node: dict[str, Any]) -> str:
        """The one keyword without which the node passes, as the end of a path; "" when it is not that simple."""
        for keyword in node:
            rest = {key: value for key, value in node.items() if key not in (keyword, "x-guidance")}
            if keyword not in ("type", "x-guidance", "$defs", "definitions") and self._reason(rest) is None:
                return f"/{keyword}"
        return ""

    def _reason(self, node: Any) -> str | None:
        self._num_trials += 1
        if not isinstance(node, dict) or self._num_trials > _MAX_TRIALS:
            return None
        shared = {key: self._root[key] for key in ("$defs", "definitions", "$id", "$schema") if key in self._root}
        text = json.dumps(shared | node | {"x-guidance": self._options})
        try:
            matcher = compile_text(to_engine_text(Grammar("json_schema", text), plain), self._vocabulary)
        except InvalidRequest as error:
            return _in_our_words(error.message.removeprefix("The grammar cannot be used: "))
        except ValueError as error:
            return _in_our_words(str(error))
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return "nothing fits it" if matcher.is_error() or not mask.any() else None


def _in_our_words(reason: str) -> str:
    """What is known of the engine's, whose own words name its insides."""
    for mark, ours in _WORDS:
        if mark in reason:
            return ours
    return reason
