"""The steps to come, played through with what is known now: whose prefill runs when, beside which streams.

The planner that decides the real steps decides these (a copy of it), so that whole rows, layers, periods and the order
of the queue need no formula. What is not known is left out: who comes later, and answers that end before their limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import cast

from twinpath.scheduler.chunk import Chunk
from twinpath.scheduler.cost import CostModel, StepShape, prefill_context
from twinpath.scheduler.ghosts import Chorus, Ghost, GhostChunk, GhostRow, shape_of_rows
from twinpath.scheduler.lanes import Choice, LanePlanner
from twinpath.scheduler.sequence import SHORT_ROWS, Lane, Sequence
from twinpath.scheduler.shapes import Streams

#: Steps played through; what is left of a long prefill then goes on at the rate found.
_MOST_STEPS = 48
#: Of a slice, so much at least is spent on its layers.
_LEAST_MS = 0.01
#: Of the machine, what goes on beside decode rows; its last slice is left so much of its layers.
_SHARE_BESIDE, _LEAST_LAYERS = 0.5, 0.01


@dataclass(slots=True)
class Rollout:
    """A world of ghosts. `waiting` come in by their order, one FLEX at a time, while fewer than `max_running` run."""

    planner: LanePlanner
    #: From a step to the next.
    gap_ms: float
    num_layers: int
    max_running: int
    running: list[Ghost]
    waiting: list[Ghost]
    chunks: list[GhostChunk] = field(default_factory=list)
    elapsed_ms: float = 0.0
    #: Milliseconds of prefill rows alone (their share of weights left out) that were done.
    done_ms: float = 0.0
    #: That ran last.
    _chunk: GhostChunk | None = None
    #: At the last decode step: that chunk, its next layer, streams beside it, and `elapsed_ms`.
    _beat: tuple[GhostChunk | None, float, int, float] = (None, 0, 0, 0.0)
    #: Those of the running ones that are streams.
    _chorus: Chorus = field(default_factory=Chorus)

    def __post_init__(self) -> None:
        self.planner = self.planner.fork()
        self._join()

    def until_first_token(self, target: Ghost, rest_ms: float = 0.0) -> float:
        """Milliseconds until `target` has run all it knows; beyond the steps played through by the rate found.
        `rest_ms`: work before it of those that are too many to wait here."""
        for _ in range(_MOST_STEPS):
            self._admit()
            if not self._step():
                break
            if not target.is_prefill:
                return self.elapsed_ms + rest_ms / self.rate
        return self.elapsed_ms + (self._left_ms(target) + rest_ms) / self.rate

    @property
    def rate(self) -> float:
        """Milliseconds of work done in one that passed."""
        return self.done_ms / self.elapsed_ms if self.done_ms else 1.0

    def _left_ms(self, target: Ghost) -> float:
        ahead = [ghost for ghost in (*self.running, *self.waiting) if ghost is target or ghost.key < target.key]
        cost = self.planner.cost
        return sum(work_ms(cost, ghost.num_planned, ghost.num_known - ghost.num_planned) for ghost in ahead)

    def _admit(self) -> None:
        if not self.waiting:
            return
        index = 0
        has_flex = any(ghost.lane is Lane.FLEX and ghost.is_prefill for ghost in self.running)
        while index < len(self.waiting) and len(self.running) + len(self._chorus) < self.max_running:
            ghost = self.waiting[index]
            if ghost.lane is Lane.FLEX and has_flex:
                index += 1
                continue
            has_flex = has_flex or ghost.lane is Lane.FLEX
            self.running.append(self.waiting.pop(index))

    def _step(self) -> bool:
        #: Those that sample in the next step beside the chorus, by their rows.
        short: list[tuple[Ghost, int]] = []
        prefill: list[Ghost] = []
        has_prefill = bool(self.chunks)
        for ghost in self.running:
            if not (length := ghost.num_plannable):
                continue
            has_prefill = has_prefill or ghost.num_known > ghost.num_planned
            if length <= SHORT_ROWS:
                short.append((ghost, length))
            else:
                prefill.append(ghost)
        if not has_prefill:
            return self._drain(short)
        prefill.sort(key=lambda ghost: ghost.key)
        streams = self._streams(short)
        choice = self.planner.choose(streams, cast(list[Sequence], prefill), cast(list[Chunk], self.chunks))
        rows = [(cast(Ghost, sequence), length) for sequence, length in choice.rows]
        if choice.layer_end is None:
            beside = self.planner.beside(cast(list[Chunk], self.chunks), cast(list[Sequence], prefill))
            self._run(short, rows, cast(GhostChunk, beside) if streams and not rows and beside else None)
        else:
            self._slice(choice, rows, choice.layer_end)
        return True

    def _streams(self, short: list[tuple[Ghost, int]]) -> Streams:
        chorus = self._chorus
        num_rows, context = len(chorus), chorus.context
        target_ms, has_default = chorus.target_ms, chorus.has_default
        for ghost, length in short:
            num_rows += length
            context += prefill_context(ghost.num_planned, length)
            if ghost.tpot_target_ms is None:
                has_default = True
            else:
                target_ms = min(target_ms, ghost.tpot_target_ms)
        return Streams(StepShape(num_rows, context, num_sampled=len(chorus) + len(short)), target_ms, has_default)

    def _drain(self, short: list[tuple[Ghost, int]]) -> bool:
        """Nobody has a prefill to run: decode until the first stream ends. Its slot is free then."""
        if not short and not self._chorus:
            return False
        num_steps = max(min([self._chorus.num_left, *[ghost.num_outputs_left for ghost, _ in short]]), 1)
        alone = shape_of_rows(self._chorus, short)
        # Contexts grow evenly: the step in the middle is the mean one.
        self._pass(alone)
        [middle_ms] = self.planner.cost.predict_run(alone, range(num_steps // 2, num_steps // 2 + 1))
        self.elapsed_ms += (num_steps - 1) * (middle_ms + self.gap_ms)
        self._chorus.skip(num_steps)
        for ghost, length in short:
            ghost.run(length)
            ghost.skip(num_steps - 1)
        self._let_go()
        return True

    def _let_go(self) -> None:
        self._chorus.let_go()
        self.running = [ghost for ghost in self.running if ghost.num_outputs_left > 0 or ghost.is_prefill]
        self._join()

    def _join(self) -> None:
        """Streams are of the chorus."""
        others: list[Ghost] = []
        for ghost in self.running:
            if ghost.is_prefill or ghost.num_outputs_left <= 0:
                others.append(ghost)
            else:
                self._chorus.add(ghost)
        self.running = others

    def _run(
        self, short: list[tuple[Ghost, int]], rows: list[tuple[Ghost, int]], beside: GhostChunk | None = None
    ) -> None:
        step_ms = self._pass(shape_of_rows(self._chorus, short + rows), is_beside=beside is not None)
        if beside is not None:
            self._go_on(beside, step_ms)
        self._chorus.skip(1)
        for ghost, length in short:
            ghost.run(length)
        for ghost, length in rows:
            self.done_ms += work_ms(self.planner.cost, ghost.num_planned, length)
            ghost.run(length)
        if not rows and self._chunk is not None:
            self._skip([ghost for ghost, _ in short], self._chunk)
        self._let_go()

    def _skip(self, others: list[Ghost], chunk: GhostChunk) -> None:
        """Periods like the last one, in which nothing but layers of one chunk ran beside the same streams: all at once,
        up to where one would end."""
        before, layer, num_streams, at_ms = self._beat
        num_layers = chunk.next_layer - layer
        num_now = len(self._chorus) + len(others)
        if before is chunk and num_streams == num_now and num_layers > 0:
            num_left = min([self._chorus.num_left, *[ghost.num_outputs_left for ghost in others]]) if num_now else 0
            num = min(ceil((self.num_layers - chunk.next_layer) / num_layers) - 1, num_left - 1)
            if num > 0:
                self.elapsed_ms += num * (self.elapsed_ms - at_ms)
                chunk.next_layer += num * num_layers
                self.done_ms += num * num_layers / self.num_layers * self._chunk_ms(chunk)
                self._chorus.skip(num)
                for ghost in others:
                    ghost.skip(num)
        self._beat = chunk, chunk.next_layer, num_now, self.elapsed_ms

    def _chunk_ms(self, chunk: GhostChunk) -> float:
        return sum(work_ms(self.planner.cost, row.start, row.length) for row in chunk.rows)

    def _slice(self, choice: Choice, rows: list[tuple[Ghost, int]], layer_end: int) -> None:
        if choice.chunk is None:
            lane = Lane.FAST if any(ghost.lane is Lane.FAST for ghost, _ in rows) else Lane.FLEX
            chunk = GhostChunk([GhostRow(ghost, ghost.num_planned, length) for ghost, length in rows], lane)
            self.chunks.append(chunk)
            for ghost, _ in rows:
                ghost.chunk = chunk
        else:
            chunk = cast(GhostChunk, choice.chunk)
        if choice.budget_ms is None:
            self._run_layers(chunk, layer_end)
        else:
            self._run_for(chunk, choice.budget_ms)
        is_through = chunk.next_layer >= self.num_layers
        self._chunk = None if is_through else chunk
        if is_through:
            self.chunks.remove(chunk)
            for row in chunk.rows:
                row.ghost.chunk = None
                row.ghost.run(row.length)

    def _run_layers(self, chunk: GhostChunk, layer_end: int) -> None:
        share = (layer_end - chunk.next_layer) / self.num_layers
        chunk.next_layer = layer_end
        num_sampled = sum(row.ghost.ends_with(row.length) for row in chunk.rows) if layer_end == self.num_layers else 0
        shape = chunk.shape
        self._pass(StepShape(0, 0, shape.num_prefill, shape.prefill_context, num_sampled, share))
        self.done_ms += share * self._chunk_ms(chunk)

    def _run_for(self, chunk: GhostChunk, budget_ms: float) -> None:
        """As far as an engine that pauses gets in this time."""
        first_ms, more_ms = self.planner.cost.predict_slices(chunk.shape, self.num_layers)
        left = self.num_layers - chunk.next_layer
        left_ms = first_ms + (left - 1) * more_ms
        is_through = budget_ms >= left_ms
        num_layers = left if is_through else max(budget_ms - first_ms + more_ms, _LEAST_MS) / more_ms
        chunk.next_layer = self.num_layers if is_through else chunk.next_layer + num_layers
        self._pass_ms(min(budget_ms, left_ms), has_decode=False)
        self.done_ms += num_layers / self.num_layers * self._chunk_ms(chunk)

    def _go_on(self, chunk: GhostChunk, elapsed_ms: float) -> None:
        """On a part of the cores, while decode rows run."""
        layer_ms = self.planner.cost.predict_slices(chunk.shape, self.num_layers)[1]
        left = self.num_layers - chunk.next_layer - _LEAST_LAYERS
        num_layers = max(min(_SHARE_BESIDE * elapsed_ms / max(layer_ms, _LEAST_MS), left), 0.0)
        chunk.next_layer += num_layers
        self.done_ms += num_layers / self.num_layers * self._chunk_ms(chunk)
        self._chunk = chunk

    def _pass(self, shape: StepShape, *, is_beside: bool = False) -> float:
        step_ms = self.planner.step_ms(shape, is_beside=is_beside)
        self._pass_ms(step_ms, has_decode=shape.num_decode > 0, is_beside=is_beside)
        return step_ms

    def _pass_ms(self, step_ms: float, *, has_decode: bool, is_beside: bool = False) -> None:
        self.planner.note_planned(step_ms, has_decode, is_beside)
        self.elapsed_ms += step_ms + self.gap_ms


def work_ms(cost: CostModel, start: int, num_rows: int) -> float:
    """Of rows [start, start + num_rows) by themselves: what does not depend on how they are cut."""
    c = cost.coefficients
    return c.prefill_row * num_rows + c.prefill_token * prefill_context(start, num_rows)
