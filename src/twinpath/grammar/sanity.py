"""What is wrong with one schema's keywords whatever stands around it, said in our words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinpath.grammar.size import MAX_EXPANDED, pattern_size, too_large

#: Least length and items that an answer can be asked for; the engine counts in 32 bits.
MAX_COUNT = 1_000_000
_MAX_BOUND = 2**63
#: Of one string in `const` or `enum`: compiling half a million takes seconds, in which no other stream gets a token.
MAX_LITERAL_CHARS = 65_536
_LEAST = ("minLength", "minItems", "minProperties")
_MOST = ("maxLength", "maxItems", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def fault(schema: dict[str, Any]) -> tuple[str, str] | None:
    """(keyword, reason) of what cannot be used; limits upwards that no answer reaches are taken out of `schema`."""
    checks: tuple[Callable[[dict[str, Any]], tuple[str, str] | None], ...] = (
        _form,
        _literals,
        _counts,
        _numbers,
        _patterns,
    )
    return next((found for check in checks if (found := check(schema)) is not None), None)


def _form(schema: dict[str, Any]) -> tuple[str, str] | None:
    for keyword in ("$id", "$anchor"):
        if keyword in schema and not isinstance(schema[keyword], str):
            return keyword, "a string is wanted"
    kinds = schema.get("type")
    if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds) and len({*kinds}) < len(kinds):
        return "type", "a type is listed twice"
    if isinstance(schema.get("items"), list):
        return "items", "a list of schemas is 'prefixItems' since draft 2020-12; 'items' is one schema"
    return None


def _literals(schema: dict[str, Any]) -> tuple[str, str] | None:
    words = schema.get("enum")
    for keyword, values in (("const", [schema.get("const")]), ("enum", words if isinstance(words, list) else [])):
        if any(isinstance(value, str) and len(value) > MAX_LITERAL_CHARS for value in values):
            return keyword, f"one of its strings has more than {MAX_LITERAL_CHARS} characters"
    return None


def _counts(schema: dict[str, Any]) -> tuple[str, str] | None:
    for keyword in _MOST:
        if _is_number(schema.get(keyword)) and schema[keyword] > MAX_COUNT:
            del schema[keyword]  # No answer is that long.
    for keyword in _LEAST:
        if _is_number(schema.get(keyword)) and schema[keyword] > MAX_COUNT:
            return keyword, f"at most {MAX_COUNT} can be asked for"
    return None


def _numbers(schema: dict[str, Any]) -> tuple[str, str] | None:
    for keyword in _BOUNDS:
        if _is_number(schema.get(keyword)) and abs(schema[keyword]) >= _MAX_BOUND:
            return keyword, "numbers from 2^63 on cannot be compared"
    return None


def _patterns(schema: dict[str, Any]) -> tuple[str, str] | None:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and (size := pattern_size(pattern)) > MAX_EXPANDED:
        return "pattern", f"it {too_large(size)}"
    names = schema.get("patternProperties")
    for name in names if isinstance(names, dict) else ():
        if (size := pattern_size(name)) > MAX_EXPANDED:
            return "patternProperties", f"a pattern {too_large(size)}"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
