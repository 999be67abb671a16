"""One planned step: the rows the scheduler remembers, and the numpy plan the engine gets."""

from __future__ import annotations

import msgspec
import numpy as np

from twinpath.scheduler.chunk import Chunk, Row
from twinpath.scheduler.cost import StepShape, prefill_context
from twinpath.scheduler.sequence import Sequence
from twinpath.types import PENDING_TOKEN, Int32s, SlotInit, StepPlan, StepResult, TokenMasks

#: Prefill rows below this run in a few milliseconds on the slowest engine: not worth an interrupt.
_MIN_DOMINANT_ROWS = 16


NOTHING = StepShape()


class Step(msgspec.Struct):
    """An outstanding plan."""

    step_id: int
    rows: list[Row]
    releases: tuple[int, ...]
    layer_begin: int
    layer_end: int
    #: The rows are those of a chunk, and run through a part of the layers.
    chunk: Chunk | None = None
    shape: StepShape = NOTHING
    #: What the cost model said, and the lane planner's period when it was asked.
    predicted_ms: float = 0.0
    period: int = 0
    planned_s: float = 0.0
    #: An earlier plan was interrupted, so this one computes on rows that never ran: its result is ignored.
    void: bool = False
    #: Whose slots the engine is to bind first.
    fresh: list[Sequence] = []
    #: See StepPlan.
    repeat: int = 1
    masks: TokenMasks | None = None
    #: A paused chunk that goes on meanwhile.
    beside: Chunk | None = None

    def measure(self, num_layers: int) -> None:
        """Look through its rows: `shape`, for the cost model, in which a row of its own counts as decode; `fresh`."""
        num_decode = decode_context = num_prefill = prefill_tokens = num_sampled = 0
        for row in self.rows:
            if row.length == 1:
                num_decode += 1
                decode_context += row.start + 1
            else:
                num_prefill += row.length
                prefill_tokens += prefill_context(row.start, row.length)
            num_sampled += row.sample
            if row.sequence.needs_init:
                row.sequence.needs_init = False
                self.fresh.append(row.sequence)
        share = (self.layer_end - self.layer_begin) / num_layers
        num_sampled = num_sampled if self.layer_end == num_layers else 0
        self.shape = StepShape(num_decode, decode_context, num_prefill, prefill_tokens, num_sampled, share)

    def measured_ms(self, result: StepResult) -> float:
        """What all of it took, 0 when that says nothing of its cost: that of a chunk which paused is known at its end,
        unless it went on beside other steps, which were as much slower."""
        if result.paused_layer is not None:
            return 0.0
        if self.chunk is None or self.chunk.budget_ms is None:
            return 0.0 if self.beside is not None else result.elapsed_ms
        return 0.0 if self.chunk.went_on else self.chunk.elapsed_ms

    def dominant(self) -> str | None:
        """The request whose prefill is at least half of this step: cancelling it is worth interrupting the others."""
        if len(self.rows) == 1:
            row = self.rows[0]
            return row.sequence.request_id if row.length >= _MIN_DOMINANT_ROWS else None
        longest = max(self.rows, key=lambda row: row.length)
        if longest.length < _MIN_DOMINANT_ROWS or 2 * longest.length < sum(row.length for row in self.rows):
            return None
        return longest.sequence.request_id


def build_plan(step: Step, block_tables: Int32s) -> StepPlan:
    """The engine's view of `step`. Rows of `block_tables` [max_slots, pages] are copied: the plan outlives changes."""
    slots, starts, lengths, samples, num_columns = [], [], [], [], 0
    for row in step.rows:
        slot, num_pages = row.sequence.slot, len(row.sequence.pages)
        num_columns = num_pages if num_pages > num_columns else num_columns
        slots.append(slot)
        starts.append(row.start)
        lengths.append(row.length)
        samples.append(row.sample)
    by_row = np.array((slots, starts, lengths), np.int32)
    return StepPlan(
        step_id=step.step_id,
        slots=by_row[0],
        starts=by_row[1],
        lengths=by_row[2],
        sample=np.array(samples, np.bool_),
        tokens=_gather_tokens(step.rows),
        block_tables=_copy_rows(block_tables[:, :num_columns], slots),
        layer_begin=step.layer_begin,
        layer_end=step.layer_end,
        residual=None if step.chunk is None else step.chunk.residual,
        budget_ms=None if step.chunk is None else step.chunk.budget_ms,
        resume=step.chunk is not None and step.chunk.is_paused,
        beside=None if step.beside is None else step.beside.residual,
        inits=tuple([SlotInit(s.slot, s.sampling, s.history(), s.num_prompt) for s in step.fresh]),
        releases=step.releases,
        repeat=step.repeat,
        masks=step.masks,
    )


def _copy_rows(table: Int32s, rows: list[int]) -> Int32s:
    """`table[rows]`; of one row without numpy's machinery for many."""
    if len(rows) == 1:
        return table[rows[0] : rows[0] + 1].copy()
    copied: Int32s = table[rows]
    return copied


def _gather_tokens(rows: list[Row]) -> Int32s:
    pieces: list[Int32s] = []
    single: list[int] = []
    for row in rows:
        if row.length == 1:
            sequence, position = row.sequence, row.start
            single.append(sequence.tokens.item(position) if position < sequence.num_known else PENDING_TOKEN)
            continue
        if single:
            pieces.append(np.array(single, np.int32))
            single = []
        pieces.append(row.sequence.tokens[row.start : row.start + row.length])
    if single:
        pieces.append(np.array(single, np.int32))
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0].copy()
