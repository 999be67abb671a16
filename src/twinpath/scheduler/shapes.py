"""Shapes of steps that are only thought of: what the lane planner asks the cost model."""

from __future__ import annotations

from collections.abc import Iterable

from twinpath.scheduler.cost import StepShape, prefill_context
from twinpath.scheduler.sequence import Sequence


def decode_shape(decode: list[Sequence]) -> StepShape:
    """The few rows that each may run, the last of them sampled."""
    num_rows = context = 0
    for sequence in decode:
        length = sequence.num_plannable
        num_rows += length
        context += sequence.num_planned + 1 if length == 1 else prefill_context(sequence.num_planned, length)
    return StepShape(num_rows, context, num_sampled=len(decode))


def rows_shape(rows: Iterable[tuple[int, int]]) -> StepShape:
    """Prefill rows given as (start, length)."""
    num_rows = context = 0
    for start, length in rows:
        num_rows += length
        context += prefill_context(start, length)
    return StepShape(num_prefill=num_rows, prefill_context=context)


def mixed_shape(alone: StepShape, prefill: list[tuple[int, int]], num_rows: int) -> StepShape:
    """The decode rows of `alone` and the first `num_rows` of `prefill`, given as (start, length)."""
    context, left = 0, num_rows
    for start, length in prefill:
        if length >= left:
            context += prefill_context(start, left)
            break
        context += prefill_context(start, length)
        left -= length
    return StepShape(alone.num_decode, alone.decode_context, num_rows, context, alone.num_sampled)
