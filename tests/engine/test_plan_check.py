"""Malformed plans are refused before they are queued, with the field and its limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinpath.engine.plan_check import check_plan
from twinpath.types import PENDING_TOKEN, EngineInfo, StepPlan, TokenMasks

INFO = EngineInfo(
    num_layers=4,
    hidden_size=8,
    vocab_size=100,
    max_model_len=64,
    page_size=4,
    num_pages=10,
    max_slots=3,
    max_step_tokens=6,
    depth=1,
)
GOOD = StepPlan(
    step_id=1,
    slots=np.array([2, 0], np.int32),
    starts=np.array([0, 7], np.int32),
    lengths=np.array([3, 1], np.int32),
    sample=np.array([False, True]),
    tokens=np.array([5, 6, 7, PENDING_TOKEN], np.int32),
    block_tables=np.array([[9, -1], [3, 0]], np.int32),
    layer_begin=0,
    layer_end=4,
)
RESIDUAL = np.zeros((4, 8), np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_end": 2, "residual": RESIDUAL},
        {"layer_begin": 2, "residual": RESIDUAL},
        {"tokens": ints(5, 6, 7, 1000)},
        {"starts": ints(0, 63)},
        {"masks": TokenMasks(ints(1), np.zeros((1, 4), np.int32))},
    ],
    ids=["whole", "first-layers", "last-layers", "token-ids-are-not-looked-at", "last-position", "masks"],
)
def test_well_formed_plans_pass(changes: dict[str, Any]) -> None:
    check_plan(replace(GOOD, **changes), INFO)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"starts": ints(0)}, "plan.starts has 1 entries for 2 slots"),
        ({"block_tables": np.zeros((3, 2), np.int32)}, "plan.block_tables has 3 entries for 2 slots"),
        ({"tokens": ints(1, 2, 3)}, "plan.tokens has 3 entries"),
        ({"lengths": ints(4, 0)}, r"plan.lengths ask for \[4, 0\]"),
        ({"lengths": ints(6, 1), "tokens": ints(*range(7))}, "plan carries 7 tokens, the engine takes 6"),
        ({"slots": ints(2, 2)}, r"distinct and below 3: \[2, 2\]"),
        ({"slots": ints(0, 3)}, r"distinct and below 3: \[0, 3\]"),
        ({"slots": ints(0, -1)}, "distinct and below 3"),
        ({"starts": ints(0, 64)}, "reaches position 65, the model length is 64"),
        ({"starts": ints(-1, 0)}, "starts before position 0"),
        ({"block_tables": ints(9, 10, 3, 0).reshape(2, 2)}, "names page 10 of 10"),
        ({"layer_end": 5}, r"layers \[0, 5\) of a model with 4"),
        ({"layer_begin": 4}, r"layers \[4, 4\) of a model with 4"),
        ({"layer_begin": 1}, "need a residual buffer"),
        ({"layer_begin": 1, "residual": RESIDUAL[:3]}, r"residual is \(3, 8\) float32, not \(4, 8\) float32"),
        ({"layer_begin": 1, "residual": RESIDUAL.astype(np.float64)}, "float64"),
    ],
)
def test_malformed_plans_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_plan(replace(GOOD, **changes), INFO)


def test_a_plan_without_segments_is_refused() -> None:
    empty = replace(
        GOOD,
        slots=ints(),
        starts=ints(),
        lengths=ints(),
        sample=np.zeros(0, np.bool_),
        tokens=ints(),
        block_tables=np.zeros((0, 0), np.int32),
    )
    with pytest.raises(ValueError, match="no segments"):
        check_plan(empty, INFO)
