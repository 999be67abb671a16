"""BFCL's rules, on calls whose verdict is plain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.bfcl_cases import Call, Case, is_right, load_cases, to_json_schema

ANSWERS: list[Any] = [
    {"trip.plan": {"to": ["New York"], "days": [3], "budget": ["", 100.5], "stops": [["a b", "c"]]}},
    {"ping": {"x": [True], "o": [{"k": ["v", "w"], "l": ["", 1]}]}},
]
TRIP: Call = ("trip.plan", {"to": "new-york", "days": 3, "stops": ["A B", "c"]})
PING: Call = ("ping", {"x": True, "o": {"k": "w"}})


def case(*answers: Any) -> Case:
    return Case("c", [], [], list(answers))


def test_right_calls_in_any_order() -> None:
    assert is_right([TRIP, PING], case(*ANSWERS))
    assert is_right([PING, TRIP], case(*ANSWERS))
    assert is_right([(TRIP[0], {**TRIP[1], "budget": 100.5})], case(ANSWERS[0]))


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [TRIP],
        [TRIP, PING, PING],
        [TRIP, TRIP],
        [(TRIP[0], {**TRIP[1], "budget": 99}), PING],
        [(TRIP[0], {**TRIP[1], "more": 1}), PING],
        [(TRIP[0], {"to": "New York", "days": 3}), PING],
        [(TRIP[0], {**TRIP[1], "stops": ["c", "a b"]}), PING],
        [TRIP, ("ping", {"x": 1, "o": {"k": "v"}})],
        [TRIP, ("ping", {"x": True, "o": {"k": "v", "l": 2}})],
        [TRIP, ("pong", PING[1])],
        [TRIP] * 40,
    ],
)
def test_wrong_calls(calls: list[Call]) -> None:
    assert not is_right(calls, case(*ANSWERS))


def test_types_become_json_schemas() -> None:
    schema = {
        "type": "dict",
        "properties": {
            "type": {"type": "float", "default": {"type": "float"}},
            "any": {"type": "any", "description": "x"},
            "pair": {"type": "tuple", "items": {"type": "dict"}},
            "kept": {"type": "string", "enum": ["dict"]},
        },
    }
    assert to_json_schema(schema) == {
        "type": "object",
        "properties": {
            "type": {"type": "number", "default": {"type": "float"}},
            "any": {"description": "x"},
            "pair": {"type": "array", "items": {"type": "object"}},
            "kept": {"type": "string", "enum": ["dict"]},
        },
    }


def test_files_are_read_as_they_are_published(tmp_path: Path) -> None:
    name = "BFCL_v4_parallel.json"
    function = {"name": "ping", "description": "d", "parameters": {"type": "dict", "properties": {}}}
    row = {"id": "parallel_0", "question": [[{"role": "user", "content": "q"}]], "function": [function]}
    (tmp_path / name).write_text(json.dumps(row) + "\n" + json.dumps({**row, "id": "parallel_1"}) + "\n")
    (tmp_path / "possible_answer").mkdir()
    answer = {"id": "parallel_0", "ground_truth": [{"ping": {}}]}
    (tmp_path / "possible_answer" / name).write_text(json.dumps(answer) + "\n")
    [loaded] = load_cases(tmp_path, "parallel", 1)
    assert loaded.messages == [{"role": "user", "content": "q"}]
    assert loaded.parameters("ping") == {"type": "object", "properties": {}}
    assert loaded.parameters("nope") is None
    assert is_right([("ping", {})], loaded)
