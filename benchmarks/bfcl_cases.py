"""BFCL's single-turn cases, and whether an answer's calls are the right ones.

The files are those of the `bfcl-eval` package: JSON lines, answers in `possible_answer/`. Scoring follows its AST
checker for Python: names, required and unexpected parameters, types, values among the possible ones; strings compare
without case, blanks and `,./-_*^`; several calls match in any order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path
from typing import Any

FILES = {
    "simple": "BFCL_v4_simple_python.json",
    "multiple": "BFCL_v4_multiple.json",
    "parallel": "BFCL_v4_parallel.json",
}
#: BFCL's words for types -> JSON Schema's; None: anything.
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
#: Beyond so many calls an answer is wrong anyway, and trying every order takes for ever.
_MAX_ORDERED_CALLS = 6
_IGNORED = re.compile(r"[ ,./\-_*^]")

Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """One question: what to send, and the calls that would be right, each value one of a list."""

    case_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    answers: list[dict[str, dict[str, list[Any]]]]

    def parameters(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool; None when there is no such tool."""
        found = (tool["function"] for tool in self.tools if tool["function"]["name"] == name)
        return next((function["parameters"] for function in found), None)


def load_cases(folder: Path, category: str, num_cases: int) -> list[Case]:
    """The first cases of a category."""
    name = FILES[category]
    rows = _rows(folder / name, num_cases)
    answers = {row["id"]: row["ground_truth"] for row in _rows(folder / "possible_answer" / name, None)}
    return [
        Case(row["id"], row["question"][0], [_tool(function) for function in row["function"]], answers[row["id"]])
        for row in rows
    ]


def to_json_schema(schema: Any) -> Any:
    """BFCL's schema with JSON Schema's types."""
    if isinstance(schema, list):
        return [to_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    mapped = {key: value if key in ("default", "enum") else to_json_schema(value) for key, value in schema.items()}
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        mapped |= {"type": _TYPES[kind]}
        if mapped["type"] is None:
            del mapped["type"]
    return mapped


def is_right(calls: Sequence[Call], case: Case) -> bool:
    """Whether these are the calls that the case asks for."""
    if len(calls) != len(case.answers) or len(calls) > _MAX_ORDERED_CALLS:
        return False
    return any(
        all(_fits(call, answer) for call, answer in zip(order, case.answers, strict=True))
        for order in permutations(calls)
    )


def _fits(call: Call, answer: Mapping[str, Mapping[str, list[Any]]]) -> bool:
    [(name, possible)] = answer.items()
    if call[0] != name or not set(call[1]) <= set(possible):
        return False
    for parameter, values in possible.items():
        if parameter not in call[1]:
            if "" not in values:
                return False
        elif not any(_same(call[1][parameter], value) for value in values):
            return False
    return True


def _same(given: Any, right: Any) -> bool:
    if isinstance(given, str) and isinstance(right, str):
        return _plain(given) == _plain(right)
    if isinstance(given, bool) or isinstance(right, bool):
        return given is right
    if isinstance(given, int | float) and isinstance(right, int | float):
        return given == right
    if isinstance(given, list) and isinstance(right, list):
        return len(given) == len(right) and all(map(_same, given, right))
    if isinstance(given, dict) and isinstance(right, dict):
        # Inside objects, too, each right value is one of a list.
        return set(given) <= set(right) and all(
            any(_same(given.get(key, ""), value) for value in (values if isinstance(values, list) else [values]))
            for key, values in right.items()
        )
    return bool(given == right)


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {**function, "parameters": to_json_schema(function["parameters"])}}


def _rows(path: Path, count: int | None) -> list[Any]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, count)]
