"""Rows of a plan, and a chunk of them that goes through the layers slice by slice."""

from __future__ import annotations

import msgspec
import numpy as np

from twinpath.scheduler.sequence import Lane, Phase, Sequence
from twinpath.types import EngineInfo, Float32s, StepResult


class Row(msgspec.Struct):
    """`length` tokens of one sequence from position `start`; `sample`: the last of them yields a token."""

    sequence: Sequence
    start: int
    length: int
    sample: bool


class Chunk:
    """Prefill rows that pause between layers: [0, next_layer) is planned, the residual stream is carried along.

    A member that was cancelled, preempted or rolled back no longer points here and is left out of the next slice; that
    slice waits until no outstanding one reads the residual. Where the engine keeps the residual, no row of it can be
    left out: the others begin again.

    Shapes: residual float32 [sum of row lengths, hidden].
    """

    __slots__ = (
        "_is_kept", "budget_ms", "elapsed_ms", "in_flight", "is_paused", "next_layer", "residual", "rows", "went_on",
    )  # fmt: skip

    def __init__(self, rows: list[Row], info: EngineInfo) -> None:
        self.rows = rows
        self._is_kept = info.keeps_residual or info.pauses
        self.residual: Float32s = np.empty((sum(row.length for row in rows), info.hidden_size), np.float32)
        self.next_layer = 0
        #: Outstanding slices.
        self.in_flight = 0
        #: Of an engine that pauses: time for its next slice, taken by all of them, and whether there was one.
        self.budget_ms: float | None = None
        self.elapsed_ms = 0.0
        self.is_paused = False
        #: Beside other steps: what it took in all is not known then.
        self.went_on = False
        for row in rows:
            row.sequence.chunk = self

    @property
    def lane(self) -> Lane:
        return Lane.FAST if any(row.sequence.lane is Lane.FAST for row in self.rows) else Lane.FLEX

    @property
    def num_rows(self) -> int:
        return len(self.residual)

    def plan_slice(self, layer_end: int, budget_ms: float | None, num_layers: int) -> tuple[int, int]:
        """The layers of its next plan: all of them where time bounds it."""
        self.in_flight += 1
        self.budget_ms = budget_ms
        if budget_ms is not None:
            return 0, num_layers
        begin, self.next_layer = self.next_layer, layer_end
        return begin, layer_end

    def end_slice(self, result: StepResult) -> bool:
        """Whether a plan that time bounded came to its end."""
        self.in_flight -= 1
        if self.budget_ms is None or result.interrupted:
            return False
        self.elapsed_ms += result.elapsed_ms
        self.is_paused = result.paused_layer is not None
        self.next_layer = result.paused_layer or self.next_layer
        return not self.is_paused

    def let_go(self) -> None:
        """Its rows are through, or planned to be: their sequences may be planned for again."""
        for row in self.rows:
            row.sequence.chunk = None

    def is_member(self, row: Row) -> bool:
        return row.sequence.chunk is self and row.sequence.phase is Phase.RUNNING

    def ready(self) -> bool:
        """Whether a slice can be planned now; drops rows that have left. A chunk without rows is over."""
        if all(map(self.is_member, self.rows)):
            return bool(self.rows)
        if self.in_flight:
            return False
        if self._is_kept:
            for row in filter(self.is_member, self.rows):
                row.sequence.roll_back()
            self.rows = []
            return False
        keep = np.repeat([self.is_member(row) for row in self.rows], [row.length for row in self.rows])
        self.rows = [row for row in self.rows if self.is_member(row)]
        self.residual = np.ascontiguousarray(self.residual[keep])
        return bool(self.rows)
