"""Stand-ins for sequences and chunks, as a `Rollout` moves them and a `LanePlanner` sees them."""

from __future__ import annotations

from dataclasses import dataclass

from twinpath.scheduler.cost import StepShape, prefill_context
from twinpath.scheduler.sequence import Lane, Sequence


class Ghost:
    """What a `LanePlanner` sees of a sequence."""

    __slots__ = ("chunk", "key", "lane", "num_known", "num_outputs_left", "num_planned", "tpot_target_ms")

    def __init__(self, sequence: Sequence, key: tuple[bool, float, int], num_cached: int = 0) -> None:
        """As it will be when all planned steps are done. `num_cached`: of its tokens, while it waits."""
        self.key = key
        self.lane = sequence.lane
        self.tpot_target_ms = sequence.tpot_target_ms
        self.num_planned = num_planned = max(sequence.num_planned, num_cached) if num_cached else sequence.num_planned
        self.num_known = num_known if (num_known := sequence.num_known) > num_planned else num_planned
        #: Tokens that it may still say, those being sampled left out.
        self.num_outputs_left = sequence.max_outputs - sequence.num_outputs - sequence.num_pending
        self.chunk: GhostChunk | None = None

    @property
    def num_plannable(self) -> int:
        if self.chunk is not None:
            return 0
        return self.num_known - self.num_planned or (1 if self.num_outputs_left > 0 else 0)

    @property
    def is_prefill(self) -> bool:
        return self.num_known > self.num_planned or self.chunk is not None

    def ends_with(self, length: int) -> bool:
        """Whether `length` more rows are the last it has, so that it says a token."""
        return self.num_planned + length >= self.num_known

    def run(self, length: int) -> None:
        """`length` more rows are done; the last known one says a token."""
        end = self.num_planned = self.num_planned + length
        if end >= self.num_known:
            self.num_known = end
            self.num_outputs_left -= 1

    def skip(self, num_tokens: int) -> None:
        """A stream has said so many more."""
        self.num_planned += num_tokens
        self.num_known = self.num_planned
        self.num_outputs_left -= num_tokens


@dataclass(slots=True)
class GhostRow:
    """Rows of a chunk."""

    ghost: Ghost
    start: int
    length: int


@dataclass(slots=True)
class GhostChunk:
    """What a `LanePlanner` sees of a chunk."""

    rows: list[GhostRow]
    lane: Lane
    #: Of an engine that pauses anywhere: a fraction.
    next_layer: float = 0
    is_paused: bool = True

    @property
    def shape(self) -> StepShape:
        """Of all its layers, nothing sampled."""
        context = sum([prefill_context(row.start, row.length) for row in self.rows])
        return StepShape(num_prefill=sum([row.length for row in self.rows]), prefill_context=context)


def shape_of_rows(rows: list[tuple[Ghost, int]]) -> StepShape:
    """Of a whole forward; a row of its own counts as decode, as in `Step.measure`."""
    num_decode = decode_context = num_prefill = prefill_tokens = num_sampled = 0
    for ghost, length in rows:
        start = ghost.num_planned
        num_sampled += start + length >= ghost.num_known
        if length == 1:
            num_decode += 1
            decode_context += start + 1
        else:
            num_prefill += length
            prefill_tokens += prefill_context(start, length)
    return StepShape(num_decode, decode_context, num_prefill, prefill_tokens, num_sampled)
