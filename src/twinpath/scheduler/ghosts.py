"""Stand-ins for sequences and chunks, as a `Rollout` moves them and a `LanePlanner` sees them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

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


class Chorus:
    """Ghosts that say a token in every step with decode rows: moved together, and one by one only when one ends.

    Invariant: all of them know what is planned, may say more, and are `_num_behind` tokens further than they say.
    """

    __slots__ = ("_ghosts", "_num_behind", "context", "has_default", "num_left", "target_ms")

    def __init__(self) -> None:
        self._ghosts: list[Ghost] = []
        self._num_behind = 0
        #: Tokens that their next rows attend to, and those that the first of them to end may still say.
        self.context, self.num_left = 0, 1 << 62
        #: See `Streams`.
        self.target_ms, self.has_default = inf, False

    def __len__(self) -> int:
        return len(self._ghosts)

    def add(self, ghost: Ghost) -> None:
        """One that has run all it knows, and may say more."""
        self.context += ghost.num_planned + 1
        if ghost.num_outputs_left < self.num_left:
            self.num_left = ghost.num_outputs_left
        if ghost.tpot_target_ms is None:
            self.has_default = True
        elif ghost.tpot_target_ms < self.target_ms:
            self.target_ms = ghost.tpot_target_ms
        if self._num_behind:
            # As if it had been there from the start.
            ghost.skip(-self._num_behind)
        self._ghosts.append(ghost)

    def skip(self, num_tokens: int) -> None:
        """Each has said so many more, none more than it may."""
        self._num_behind += num_tokens
        self.context += num_tokens * len(self._ghosts)
        self.num_left -= num_tokens

    def let_go(self) -> None:
        """Of those that may say no more."""
        if self.num_left > 0:
            return
        ghosts, num_behind = self._ghosts, self._num_behind
        self.__init__()  # type: ignore[misc]
        for ghost in ghosts:
            ghost.skip(num_behind)
            if ghost.num_outputs_left > 0:
                self.add(ghost)


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


def shape_of_rows(chorus: Chorus, rows: list[tuple[Ghost, int]]) -> StepShape:
    """Of a whole forward; a row of its own counts as decode, as in `Step.measure`."""
    num_decode = num_sampled = len(chorus)
    decode_context = chorus.context
    num_prefill = prefill_tokens = 0
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
