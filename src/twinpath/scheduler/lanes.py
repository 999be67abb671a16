"""How prefill shares the engine with decode: mixed rows in a decode step, or slices between decode steps.

Pure decisions: looks at sequences, changes none. A *period* is the time from one step with decode rows to the next;
the budget bounds it, so that every stream gets its token in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import msgspec

from twinpath.scheduler.chunk import Chunk
from twinpath.scheduler.cost import CostModel, StepShape
from twinpath.scheduler.pacing import Pacing
from twinpath.scheduler.reserve import Reserve
from twinpath.scheduler.sequence import Lane, Sequence
from twinpath.scheduler.shapes import Streams, mixed_shape, rows_shape
from twinpath.scheduler.step import Step

#: Fewest rows worth a chunk of their own: below, weights are read for too little.
_MIN_CHUNK_TOKENS = 16
#: What a period carries at least, so that no prefill starves, and no row is offered less.
_MIN_ROWS = 4
#: Lines that look for the rows of a mixed step, before it is looked for by halves.
_MOST_LINES = 5
#: Chunks of half the size so often in a row that are no better: those yet smaller are not either.
_MOST_WORSE = 3
#: Where the engine pauses: share of the budget that prefill gets in any case, and the least time worth a plan. Who
#: waits for a first token gets more: few periods are long for it.
_LEAST_SHARE = {Lane.FAST: 0.35, Lane.FLEX: 0.2}
#: Where a chunk goes on beside decode rows it gets the most of its time there.
_LEAST_BESIDE = {Lane.FAST: 0.1, Lane.FLEX: 0.05}
_MIN_SLICE_MS = 0.3
#: Chunks that fill a period with so many layers at most, in steps of so many rows: what is left of it would be lost in
#: every period until the chunk's end.
_MOST_FILLING, _FILLING_GRAIN = 3, 256


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """What is promised, resolved for a device."""

    #: Prompts with more uncached tokens are FLEX.
    flex_threshold_tokens: int = 2048
    #: Longest time between tokens of a stream beside prefill, as a multiple of its decode step alone; or in ms.
    itl_budget: float = 2.0
    itl_budget_ms: float | None = None
    #: Longest step while nobody waits for a token: what an arrival waits at most.
    idle_step_ms: float = 50.0
    #: FAST prefill up to so long runs whole then: who comes would wait for it anyway. 0: within the idle step as well.
    fast_step_ms: float = 0.0


class Choice(msgspec.Struct, frozen=True):
    """One step. `chunk`: run its next layers up to `layer_end`. Else a new chunk of `rows` up to `layer_end`, or, with
    `layer_end` None, a whole forward of the decode rows and `rows`."""

    rows: list[tuple[Sequence, int]] = []
    chunk: Chunk | None = None
    layer_end: int | None = None
    #: Of an engine that pauses: how long it may go on; `layer_end` is then only a guess.
    budget_ms: float | None = None


_NO_ROWS = StepShape()


class Alone(msgspec.Struct, frozen=True):
    """The decode rows of a step, and what they take by themselves."""

    shape: StepShape = _NO_ROWS
    ms: float = 0.0


class LanePlanner:
    """Chooses each step; is told what was planned and how long it took."""

    def __init__(
        self,
        settings: LaneSettings,
        cost: CostModel,
        num_layers: int,
        max_tokens: int,
        chunk_grain: int = 1,
        *,
        pauses: bool = False,
        goes_on: bool = False,
    ) -> None:
        """`chunk_grain`: see `EngineInfo`; so `pauses`: then time is given out instead of layers; and `goes_on`."""
        self._goes_on = goes_on
        self._chunk_grain = chunk_grain
        self.settings = settings
        self.pacing = Pacing() if pauses else None
        #: Where nothing pauses.
        self.reserve = Reserve()
        self._gap_budget_ms: float | None = None
        self.cost = cost
        self._num_layers = num_layers
        self._max_tokens = max_tokens
        #: Milliseconds since the last step with decode rows: measured where known, else predicted.
        self._spent_ms = 0.0
        self._period = 0
        #: Of the period that goes on, None without streams; and of the one that the last decode step ended, None when
        #: nothing but that step ran in it.
        self._budget_ms: float | None = None
        self._shared_ms: float | None = None

    def fork(self) -> LanePlanner:
        """One that plans on from here without moving this one; its settings and what it learns from are shared."""
        planner = LanePlanner.__new__(LanePlanner)
        planner.__dict__.update(self.__dict__)
        return planner

    def lane_of(self, num_uncached: int) -> Lane:
        return Lane.FLEX if num_uncached > self.settings.flex_threshold_tokens else Lane.FAST

    @property
    def period(self) -> int:
        return self._period

    def note_planned(self, predicted_ms: float, has_decode: bool, is_beside: bool = False) -> None:
        if has_decode:
            self._period += 1
            self._shared_ms = self._budget_ms if self._spent_ms > 0.0 or is_beside else None
            self._spent_ms = 0.0
        else:
            self._spent_ms += predicted_ms

    def note_measured(self, period: int, predicted_ms: float, elapsed_ms: float) -> None:
        """A step without decode rows, planned in `period`, is done."""
        if period == self._period and elapsed_ms > 0.0:
            self._spent_ms += elapsed_ms - predicted_ms

    def note_result(self, step: Step, elapsed_ms: float) -> None:
        """A step is done."""
        if self.pacing is None:
            self.reserve.note(step.shape, elapsed_ms, self._gap_budget_ms)
        if not step.shape.num_decode:
            self.note_measured(step.period, step.predicted_ms, elapsed_ms)
        elif self.pacing is not None:
            budget_ms = self._budget_ms if step.shape.num_prefill else self._shared_ms
            base_ms = self.cost.base(step.shape)
            self.pacing.note_gap(step.planned_s + elapsed_ms / 1e3, budget_ms, base_ms)
            if step.beside is not None:
                self.pacing.note_beside(elapsed_ms / base_ms)

    def budget_ms(self, streams: Streams, alone_ms: float) -> float:
        """Of a period with these streams, whose step alone takes `alone_ms`."""
        settings = self.settings
        default = settings.itl_budget * alone_ms if settings.itl_budget_ms is None else settings.itl_budget_ms
        return min(streams.target_ms, default) if streams.has_default or not streams else streams.target_ms

    def alone_ms(self, shape: StepShape) -> float:
        """From one token to the next of streams of this shape, when nothing else runs."""
        ratio = None if self.pacing is None else self.pacing.idle_ratio
        return self.cost.predict(shape) if ratio is None else ratio * self.cost.base(shape)

    def slack_ms(self, streams: Streams, alone_ms: float) -> float:
        """What a whole period leaves for prefill beside these streams, whose step takes `alone_ms`."""
        if self.pacing is not None:
            budget_ms = self._budget_ms = self.budget_ms(streams, self.alone_ms(streams.shape))
            return budget_ms * (1.0 - self.pacing.reserve) - alone_ms
        budget_ms = self._gap_budget_ms = self.budget_ms(streams, alone_ms)
        return budget_ms * (1.0 - self.reserve.share) - alone_ms

    def step_ms(self, shape: StepShape, *, is_beside: bool) -> float:
        """Of a whole step, beside a chunk or alone."""
        if not is_beside or self.pacing is None:
            return self.cost.predict(shape)
        return self.pacing.beside_ratio * self.cost.base(shape)

    def beside(self, chunks: list[Chunk], prefill: list[Sequence]) -> Chunk | None:
        """What goes on while the decode rows run: the chunk whose turn it is, if it can."""
        chunk = _next_chunk(chunks, prefill) if self._goes_on else None
        return chunk if chunk is not None and chunk.is_paused else None

    def choose(self, streams: Streams, prefill: list[Sequence], chunks: list[Chunk]) -> Choice:
        """`streams`: sequences with a row that samples. `prefill`: the others in the order to serve them. `chunks`:
        those that can go on, oldest first. At least one of the three is not empty."""
        if not prefill and not chunks:
            return Choice()
        alone = Alone()
        if streams:
            alone = Alone(streams.shape, self.step_ms(streams.shape, is_beside=self._goes_on))
            slack_ms = self._least_ms(self.slack_ms(streams, alone.ms), chunks, prefill) - self._spent_ms
        else:
            self._spent_ms = 0.0
            self._budget_ms = None
            slack_ms = self.settings.idle_step_ms
        if self.pacing is not None and streams and self._spent_ms > 0.0 and slack_ms < _MIN_SLICE_MS:
            return Choice()
        chunk = _next_chunk(chunks, prefill)
        if chunk is not None:
            return self._go_on(chunk, slack_ms, bool(streams))
        batch = self._batch(prefill)
        if not streams and prefill[0].lane is Lane.FAST and self._prefill_ms(batch) <= self.settings.fast_step_ms:
            return Choice(batch)
        if batch[0][1] < _MIN_CHUNK_TOKENS and sum([length for _, length in batch]) < _MIN_CHUNK_TOKENS:
            return Choice(_grant(prefill, self._num_mixed(alone, prefill, max(slack_ms, 0.0))[0]))
        return self._open(alone, prefill, batch, slack_ms)

    def _least_ms(self, slack_ms: float, chunks: list[Chunk], prefill: list[Sequence]) -> float:
        """So much even of a period that has nothing to spare."""
        if self._budget_ms is None:
            return slack_ms
        chunk = _next_chunk(chunks, prefill)
        shares = _LEAST_BESIDE if self._goes_on else _LEAST_SHARE
        return max(slack_ms, self._budget_ms * shares[chunk.lane if chunk is not None else prefill[0].lane])

    def _go_on(self, chunk: Chunk, slack_ms: float, has_decode: bool) -> Choice:
        left = self._num_layers - chunk.next_layer
        shape = rows_shape((row.start, row.length) for row in chunk.rows)
        num_layers = min(self._layers_within(shape, slack_ms)[0], left)
        if num_layers == 0:
            if has_decode and self._spent_ms > 0.0 and self.pacing is None:
                return Choice()
            num_layers = min(1, left)
        budget_ms = max(slack_ms, _MIN_SLICE_MS) if self.pacing is not None else None
        return Choice(chunk=chunk, layer_end=chunk.next_layer + num_layers, budget_ms=budget_ms)

    def _open(
        self, alone: Alone, prefill: list[Sequence], batch: list[tuple[Sequence, int]], slack_ms: float
    ) -> Choice:
        """Mixed rows or a new chunk: what gets more prompt tokens done in a millisecond."""
        num_mixed, mixed_ms = self._num_mixed(alone, prefill, slack_ms)
        if len(prefill) == 1 and 0 < (to_border := -prefill[0].num_planned % self._chunk_grain) < num_mixed:
            num_mixed = to_border  # From there chunks are cheaper, and may win.
            mixed_ms = self._mixed_ms(alone, [(prefill[0].num_planned, prefill[0].num_plannable)], num_mixed)
        mixed, best_rate = Choice(_grant(prefill, num_mixed)), num_mixed / mixed_ms
        fits = mixed_ms <= alone.ms + slack_ms
        if fits and num_mixed == sum([sequence.num_plannable for sequence in prefill]):
            return mixed
        if self.pacing is not None:
            shape = rows_shape((sequence.num_planned, length) for sequence, length in batch)
            num_layers = max(self._layers_within(shape, slack_ms)[0], 1)
            return Choice(batch, layer_end=num_layers, budget_ms=max(slack_ms, _MIN_SLICE_MS))
        if fits and self._most_rate(alone, batch, slack_ms) < best_rate:
            return mixed
        best, num_worse = mixed, 0
        for rows in chain(self._filling_sizes(batch, slack_ms), _chunk_sizes(batch, self._chunk_grain)):
            num_rows = sum(length for _, length in rows)
            shape = rows_shape((sequence.num_planned, length) for sequence, length in rows)
            num_layers, slice_ms = self._layers_within(shape, slack_ms)
            if not num_layers:
                continue
            rate = num_rows * num_layers / self._num_layers / (alone.ms + slice_ms)
            if rate > best_rate or (best is mixed and not fits):
                best, best_rate, num_worse = Choice(rows, layer_end=num_layers), rate, 0
            elif (num_worse := num_worse + 1) == _MOST_WORSE:
                break
        if best is mixed and alone.shape.num_decode and self._spent_ms > 0.0 and not fits:
            return Choice()
        return best

    def _most_rate(self, alone: Alone, batch: list[tuple[Sequence, int]], slack_ms: float) -> float:
        """That any chunk of these rows can have, so that most need not be looked at."""
        start = min([sequence.num_planned for sequence, _ in batch])
        return self.cost.most_rate(start, sum([length for _, length in batch]), alone.ms, slack_ms)

    def _num_mixed(self, alone: Alone, prefill: list[Sequence], slack_ms: float) -> tuple[int, float]:
        """How many prefill rows fit beside the decode rows, a few in any case; and what the step takes with them."""
        limit_ms = slack_ms + alone.ms
        rows = [(sequence.num_planned, sequence.num_plannable) for sequence in prefill]
        high = min(sum([length for _, length in rows]), self._max_tokens - alone.shape.num_sampled)
        high_ms = self._mixed_ms(alone, rows, high)
        if high <= _MIN_ROWS or high_ms <= limit_ms:
            return high, high_ms
        if slack_ms < 0.0:
            return _MIN_ROWS, self._mixed_ms(alone, rows, _MIN_ROWS)
        # From here on `low_ms` is within the limit and `high_ms` is not.
        low, low_ms, best_ms = 0, alone.ms, 0.0
        for num_looks in range(high.bit_length() + _MOST_LINES):
            # Where a line through both ends meets the limit; half way when that does not get there.
            width = high - low
            num_more = int((limit_ms - low_ms) / (high_ms - low_ms) * width) if num_looks < _MOST_LINES else width // 2
            middle = min(max(low + num_more, _MIN_ROWS), high - 1)
            if middle <= low:
                break
            middle_ms = self._mixed_ms(alone, rows, middle)
            if middle_ms <= limit_ms:
                low, low_ms, best_ms = middle, middle_ms, middle_ms
            else:
                high, high_ms = middle, middle_ms
                if high <= _MIN_ROWS:
                    return high, high_ms
        return low, best_ms

    def _mixed_ms(self, alone: Alone, prefill: list[tuple[int, int]], num_rows: int) -> float:
        return self.cost.predict(mixed_shape(alone.shape, prefill, num_rows))

    def _layers_within(self, shape: StepShape, slack_ms: float) -> tuple[int, float]:
        """How many layers of these rows fit, and what they take."""
        first_ms, more_ms = self.cost.predict_slices(shape, self._num_layers)
        if first_ms > slack_ms:
            return 0, 0.0
        num_layers = min(self._num_layers, 1 + int((slack_ms - first_ms) / max(more_ms, 1e-9)))
        return num_layers, first_ms + (num_layers - 1) * more_ms

    def _filling_sizes(
        self, batch: list[tuple[Sequence, int]], slack_ms: float
    ) -> Iterator[list[tuple[Sequence, int]]]:
        """One sequence by as many rows as fill `slack_ms` with one layer, with two and with three."""
        (sequence, length) = batch[0]
        if len(batch) > 1 or self._chunk_grain > 1:
            return
        for num_layers in range(1, _MOST_FILLING + 1):
            low, high = 0, length // _FILLING_GRAIN
            while low < high:
                middle = (low + high + 1) // 2
                shape = rows_shape([(sequence.num_planned, middle * _FILLING_GRAIN)])
                first_ms, more_ms = self.cost.predict_slices(shape, self._num_layers)
                if first_ms + (num_layers - 1) * more_ms <= slack_ms:
                    low = middle
                else:
                    high = middle - 1
            if low:
                yield [(sequence, low * _FILLING_GRAIN)]

    def _batch(self, prefill: list[Sequence]) -> list[tuple[Sequence, int]]:
        """The first sequence, and those behind it in its lane that make the mean of their first tokens earlier."""
        first = prefill[0]
        batch = [(first, min(first.num_plannable, self._max_tokens))]
        if len(prefill) == 1 or batch[0][1] < first.num_plannable:
            return batch
        batch_ms, left = self._prefill_ms(batch), self._max_tokens - batch[0][1]
        for sequence in prefill[1:]:
            length = sequence.num_plannable
            if sequence.lane is not first.lane or length > left:
                break
            together_ms = self._prefill_ms([*batch, (sequence, length)])
            # n wait for the newcomer's rows; the newcomer does not wait for a forward of its own.
            if (len(batch) + 1) * (together_ms - batch_ms) >= self._prefill_ms([(sequence, length)]):
                break
            batch.append((sequence, length))
            batch_ms, left = together_ms, left - length
        return batch

    def _prefill_ms(self, rows: list[tuple[Sequence, int]]) -> float:
        return self.cost.predict(rows_shape((sequence.num_planned, length) for sequence, length in rows))


def _grant(prefill: list[Sequence], num_rows: int) -> list[tuple[Sequence, int]]:
    rows = []
    for sequence in prefill:
        if num_rows <= 0:
            break
        length = min(sequence.num_plannable, num_rows)
        rows.append((sequence, length))
        num_rows -= length
    return rows


def _chunk_sizes(batch: list[tuple[Sequence, int]], grain: int) -> list[list[tuple[Sequence, int]]]:
    """A batch as it is; one sequence also by halves: its layers then fit a smaller slack. Long ones keep to `grain`."""
    (sequence, length) = batch[0]
    if len(batch) > 1:
        return [batch]
    if length >= grain > 1:
        to_border = -sequence.num_planned % grain
        length = to_border or grain << (length // grain).bit_length() - 1
    sizes = [[(sequence, length)]]
    while length // 2 >= _MIN_CHUNK_TOKENS:
        length //= 2
        sizes.append([(sequence, length)])
    return sizes


def _next_chunk(chunks: list[Chunk], prefill: list[Sequence]) -> Chunk | None:
    """A FAST chunk before all, then new FAST prefill, then a FLEX chunk."""
    fast = next((chunk for chunk in chunks if chunk.lane is Lane.FAST), None)
    if fast is not None or (prefill and prefill[0].lane is Lane.FAST):
        return fast
    return chunks[0] if chunks else None
