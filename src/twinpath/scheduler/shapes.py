"""Shapes of steps that are only thought of: what the lane planner asks the cost model."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from twinpath.scheduler.cost import StepShape, prefill_context
from twinpath.scheduler.sequence import Sequence


class Streams(msgspec.Struct, frozen=True, gc=False):
    """The sequences that are about to sample, all together."""

    #: The few rows that each may run, the last of them sampled.
    shape: StepShape = StepShape()
    #: Shortest time from token to token that one of them asked for.
    target_ms: float = inf
    #: One of them asked for none: the server's own budget holds for it.
    has_default: bool = False

    def __bool__(self) -> bool:
        return self.shape.num_sampled > 0


NO_STREAMS = Streams()


def streams_of(decode: list[Sequence]) -> Streams:
    """Each with its next rows."""
    num_rows = context = 0
    target_ms, has_default = inf, False
    for sequence in decode:
        length, start = sequence.num_plannable, sequence.num_planned
        num_rows += length
        context += start + 1 if length == 1 else prefill_context(start, length)
        if sequence.tpot_target_ms is None:
            has_default = True
        elif sequence.tpot_target_ms < target_ms:
            target_ms = sequence.tpot_target_ms
    return Streams(StepShape(num_rows, context, num_sampled=len(decode)), target_ms, has_default)


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
