"""One planned step: the rows the scheduler remembers, and the numpy plan the engine gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twinpath.scheduler.sequence import Sequence
from twinpath.types import PENDING_TOKEN, Int32s, SlotInit, StepPlan

#: Prefill rows below this run in a few milliseconds on the slowest engine: not worth an interrupt.
_MIN_DOMINANT_ROWS = 16


@dataclass(slots=True)
class Row:
    """`length` tokens of one sequence from position `start`; `sample`: the last of them yields a token."""

    sequence: Sequence
    start: int
    length: int
    sample: bool


@dataclass(slots=True)
class Step:
    """An outstanding plan."""

    step_id: int
    rows: list[Row]
    releases: tuple[int, ...]
    #: An earlier plan was interrupted, so this one computes on rows that never ran: its result is ignored.
    void: bool = False

    def dominant(self) -> str | None:
        """The request whose prefill is at least half of this step: cancelling it is worth interrupting the others."""
        longest = max(self.rows, key=lambda row: row.length)
        if longest.length < _MIN_DOMINANT_ROWS or 2 * longest.length < sum(row.length for row in self.rows):
            return None
        return longest.sequence.request_id


def build_plan(step: Step, inits: tuple[SlotInit, ...], block_tables: Int32s, num_layers: int) -> StepPlan:
    """The engine's view of `step`. Rows of `block_tables` [max_slots, pages] are copied: the plan outlives changes."""
    rows = step.rows
    slots = np.array([row.sequence.slot for row in rows], np.int32)
    num_columns = max([len(row.sequence.pages) for row in rows])
    return StepPlan(
        step_id=step.step_id,
        slots=slots,
        starts=np.array([row.start for row in rows], np.int32),
        lengths=np.array([row.length for row in rows], np.int32),
        sample=np.array([row.sample for row in rows], np.bool_),
        tokens=_gather_tokens(rows),
        block_tables=block_tables[slots, :num_columns],
        layer_begin=0,
        layer_end=num_layers,
        inits=inits,
        releases=step.releases,
    )


def _gather_tokens(rows: list[Row]) -> Int32s:
    if all(row.length == 1 for row in rows):
        return np.array([_token(row.sequence, row.start) for row in rows], np.int32)
    return np.concatenate(
        [
            row.sequence.tokens[row.start : row.start + row.length]
            if row.length > 1
            else np.array([_token(row.sequence, row.start)], np.int32)
            for row in rows
        ],
        dtype=np.int32,
    )


def _token(sequence: Sequence, position: int) -> int:
    return int(sequence.tokens[position]) if position < sequence.num_known else PENDING_TOKEN
