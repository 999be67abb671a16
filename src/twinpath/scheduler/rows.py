"""Which rows the next step has: taken from the sequences that run, with the pages that they need."""

from __future__ import annotations

import msgspec

from twinpath.contracts import Clock
from twinpath.scheduler.chunk import Chunk, Row
from twinpath.scheduler.lanes import Choice, LanePlanner
from twinpath.scheduler.roster import Roster
from twinpath.scheduler.sequence import SHORT_ROWS, Lane, Phase, Sequence
from twinpath.scheduler.shapes import NO_STREAMS, streams_of
from twinpath.types import EngineInfo, StepResult


class Picked(msgspec.Struct, frozen=True):
    """Rows of a step. `chunk`: they are this one's, and run through `layers` (half-open; None: through all)."""

    rows: list[Row]
    chunk: Chunk | None = None
    layers: tuple[int, int] | None = None
    #: Nothing else has to run between this step and another one of the same rows.
    may_repeat: bool = False
    #: A paused chunk that goes on meanwhile.
    beside: Chunk | None = None


class RowPicker:
    """Serves decode rows in every step, and prefill as the lane planner says; without one, prefill fills the step.

    `chunks`: those whose last slice is not planned yet, oldest first.
    """

    def __init__(
        self, info: EngineInfo, max_tokens: int, roster: Roster, planner: LanePlanner | None, clock: Clock
    ) -> None:
        """`max_tokens`: of one step."""
        self.chunks: list[Chunk] = []
        self._info = info
        self._max_tokens = max_tokens
        self._roster = roster
        self._planner = planner
        self._clock = clock

    def pick(self, *, with_lanes: bool) -> Picked | None:
        """None when nothing can run."""
        if self._planner is not None and with_lanes:
            return self._pick_by_lanes(self._planner)
        rows: list[Row] = []
        budget = self._max_tokens
        for sequence in self._by_length():
            if budget == 0:
                break
            if sequence.phase is not Phase.RUNNING:
                continue
            length = min(sequence.num_plannable, budget)
            if length and self._roster.extend_pages(sequence, sequence.num_planned + length):
                rows.append(self._take(sequence, length))
                budget -= length
        while budget and (admitted := self._roster.admit(Lane.FAST)) is not None:
            length = min(admitted.num_plannable, budget)
            rows.append(self._take(admitted, length))
            budget -= length
        return Picked(rows, may_repeat=True) if rows else None

    def end_slice(self, chunk: Chunk, result: StepResult) -> None:
        """The oldest outstanding plan of a chunk is done."""
        if chunk.end_slice(result) and chunk in self.chunks:
            self.chunks.remove(chunk)
            chunk.let_go()

    def _by_length(self) -> list[Sequence]:
        """Running sequences with decode rows before those with prefill rows, each by age."""
        long = [sequence for sequence in self._roster.running if sequence.num_remaining > SHORT_ROWS]
        return [sequence for sequence in self._roster.running if sequence.num_remaining <= SHORT_ROWS] + long

    def _pick_by_lanes(self, planner: LanePlanner) -> Picked | None:
        now_s = self._clock()
        self._roster.admit_lanes(now_s)
        decode, prefill = self._split()
        chunks: list[Chunk] = []
        if self.chunks:
            chunks = [chunk for chunk in self.chunks if chunk.ready()]
            self.chunks = [chunk for chunk in self.chunks if chunk.rows]
            prefill = self._roster.running  # What a chunk that is over leaves is planned again.
        prefill = [s for s in prefill if s.phase is Phase.RUNNING and s.num_plannable > SHORT_ROWS]
        if len(prefill) > 1:
            prefill.sort(key=lambda sequence: self._roster.rank(sequence, now_s))
        if not decode and not prefill and not chunks:
            return None
        streams = streams_of(decode) if prefill or chunks else NO_STREAMS
        choice = planner.choose(streams, prefill, chunks)
        if choice.layer_end is not None:
            return self._slice(choice, choice.layer_end)
        rows = [self._take(sequence, sequence.num_plannable) for sequence in decode]
        rows += [self._take(sequence, length) for sequence, length in choice.rows]
        beside = planner.beside(chunks, prefill) if decode and not choice.rows else None
        if beside is not None:
            beside.went_on = True
        return Picked(rows, may_repeat=not chunks, beside=beside)

    def _split(self) -> tuple[list[Sequence], list[Sequence]]:
        """Running sequences that are about to sample, with pages for it; and those with longer prefills."""
        budget, page_size = self._max_tokens, self._info.page_size
        short: list[Sequence] = []
        long: list[Sequence] = []
        running, num_preemptions = Phase.RUNNING, self._roster.num_preemptions
        for sequence in list(self._roster.running):
            length = sequence.num_plannable
            if sequence.phase is not running or not length:
                continue
            if length > SHORT_ROWS:
                long.append(sequence)
            elif length <= budget and (
                len(sequence.pages) * page_size >= sequence.num_planned + length
                or self._roster.extend_pages(sequence, sequence.num_planned + length)
            ):
                short.append(sequence)
                budget -= length
        if self._roster.num_preemptions != num_preemptions:
            # Only now: whoever was preempted for their pages has no rows.
            short = [sequence for sequence in short if sequence.phase is running]
        return short, long

    def _slice(self, choice: Choice, layer_end: int) -> Picked:
        """The next layers of a chunk, or the first of a new one."""
        num_layers, chunk = self._info.num_layers, choice.chunk
        is_last = layer_end == num_layers and choice.budget_ms is None
        if chunk is None:
            rows = [self._take(sequence, length) for sequence, length in choice.rows]
            if is_last:
                return Picked(rows)
            chunk = Chunk(rows, self._info)
            self.chunks.append(chunk)
        else:
            for row in chunk.rows:
                row.sequence.in_flight += 1
        layers = chunk.plan_slice(layer_end, choice.budget_ms, num_layers)
        if is_last:
            self.chunks.remove(chunk)
            chunk.let_go()
        return Picked(list(chunk.rows), chunk, layers)

    def _take(self, sequence: Sequence, length: int) -> Row:
        start = sequence.num_planned
        end = sequence.num_planned = start + length
        sample = end >= sequence.num_known + sequence.num_pending and sequence.max_outputs > 0
        sequence.num_pending += sample
        sequence.in_flight += 1
        if sequence.waited_s is None:
            sequence.waited_s = self._clock() - sequence.arrival_s
            self._roster.note_wait(sequence, sequence.waited_s, served=True)
        return Row(sequence, start, length, sample)
