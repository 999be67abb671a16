"""From a plan to the rows a card runs: slots bound, tokens and pages checked, everything laid out as int32 arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from twinpath.engine.cuda.slots import SlotTables
from twinpath.errors import EngineError
from twinpath.sampling.reference import GREEDY_BELOW
from twinpath.types import PENDING_TOKEN, EngineInfo, Int32s, SamplingParams, SlotInit, StepPlan


@dataclass(slots=True, eq=False)
class Bound:
    """A request bound to a slot, as far as the host knows it."""

    sampling: SamplingParams
    #: Tokens whose value is known here; those sampled by steps under way are not among them yet.
    tokens: list[int]
    num_prompt: int
    #: Tokens that exist: known here, or sampled by a step that was launched.
    num_sampled: int
    #: Why an earlier step of this request failed; steps launched behind that one fail alike.
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A plan's segment `index` that can run; it has the plan's rows [row, row + length)."""

    index: int
    slot: int
    bound: Bound
    row: int
    start: int
    length: int
    sample: bool


@dataclass(slots=True)
class StepRows:
    """A resolved plan.

    Rows of segments that cannot run stay where they are and are padding.
    Shapes: tokens[i] int32 [length of run i]; pairs int32 [N, 2], updates of the slots' tables.
    """

    runs: list[Run] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    inits: list[SlotInit] = field(default_factory=list)
    tokens: list[Int32s] = field(default_factory=list)
    pairs: list[Int32s] = field(default_factory=list)
    num_rows: int = 0

    @property
    def sampled(self) -> list[Run]:
        return [run for run in self.runs if run.sample]

    @property
    def is_greedy(self) -> bool:
        """Whether each sampled row is, and none asks for log-probabilities."""
        settings = [run.bound.sampling for run in self.sampled]
        return all(s.temperature < GREEDY_BELOW and s.logprobs is None for s in settings)


class Binder:
    """Holds who is in which slot and resolves plans in the order they are launched."""

    def __init__(self, tables: SlotTables, info: EngineInfo) -> None:
        self._tables = tables
        self._info = info
        self._bound: dict[int, Bound] = {}

    def resolve(self, plan: StepPlan) -> StepRows:
        """Bind the plan's inits and lay out the segments that can run; the others become failures."""
        rows = StepRows(num_rows=len(plan.tokens))
        for init in plan.inits:
            history = init.history.tolist()
            self._bound[init.slot] = Bound(init.sampling, history, init.num_prompt, len(history))
            updates = self._tables.setting_updates(init.slot, init.sampling, init.num_prompt)
            if updates is not None:
                rows.pairs.append(updates)
            rows.inits.append(init)
        samples = plan.layer_end == self._info.num_layers
        end_row = 0
        for index, (slot, start, length) in enumerate(
            zip(plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist(), strict=True)
        ):
            row, end_row = end_row, end_row + length
            try:
                bound = self._check(slot, start, length)
                tokens = self._known(bound, plan.tokens[row:end_row], start)
                self._send_pages(rows, slot, plan.block_tables[index], start + length)
                sample = samples and bool(plan.sample[index])
                if sample and bound.num_sampled != start + length:
                    known, position = bound.num_sampled, start + length
                    raise EngineError(f"{known} tokens are known, position {position} cannot be sampled")
            except EngineError as failure:
                rows.failures[index] = str(failure)
                if bound_before := self._bound.get(slot):
                    bound_before.failure = str(failure)
                continue
            bound.num_sampled += sample
            rows.runs.append(Run(index, slot, bound, row, start, length, sample))
            rows.tokens.append(tokens)
        return rows

    def release(self, plan: StepPlan) -> None:
        """After the plan ran. A slot bound again by a later plan is not touched: that plan was launched after it."""
        for slot in plan.releases:
            self._bound.pop(slot, None)

    def _check(self, slot: int, start: int, length: int) -> Bound:
        bound = self._bound.get(slot)
        if bound is None:
            raise EngineError(f"slot {slot} holds no request")
        if bound.failure is not None:
            raise EngineError(bound.failure)
        return bound

    def _known(self, bound: Bound, tokens: Int32s, start: int) -> Int32s:
        """Tokens with the pending ones filled in where the host knows them, and left to the device where it does."""
        if int(tokens.min()) < 0 or int(tokens.max()) >= self._info.vocab_size:
            pending = np.flatnonzero(tokens == PENDING_TOKEN)
            wrong = tokens[((tokens < 0) & (tokens != PENDING_TOKEN)) | (tokens >= self._info.vocab_size)]
            if len(wrong):
                raise EngineError(f"token id {wrong[0]} is outside the vocabulary of {self._info.vocab_size}")
            tokens = tokens.copy()
            for offset in pending.tolist():
                position = start + offset
                if position >= bound.num_sampled:
                    raise EngineError(f"the token at position {position} is not known")
                if position < len(bound.tokens):
                    tokens[offset] = bound.tokens[position]
            known = tokens[tokens != PENDING_TOKEN]
            if len(known) and (int(known.min()) < 0 or int(known.max()) >= self._info.vocab_size):
                raise EngineError(f"a pending token is outside the vocabulary of {self._info.vocab_size}")
        return tokens

    def _send_pages(self, rows: StepRows, slot: int, table: Int32s, end: int) -> None:
        num_pages = -(-end // self._info.page_size)
        pages = table[:num_pages]
        if len(pages) < num_pages or int(pages.min()) < 0:
            raise EngineError(f"the block table has no page for position {end - 1}")
        updates = self._tables.page_updates(slot, pages)
        if updates is not None:
            rows.pairs.append(updates)


@dataclass(frozen=True, slots=True)
class Shape:
    """Capacities of one step's input block: rows, query tiles, sampled rows; rows and sampled rows are aligned."""

    rows: int
    tiles: int
    picks: int

    @property
    def num_words(self) -> int:
        return 3 * self.rows + 4 * self.tiles + 4 * self.picks


def write_rows(
    rows: StepRows,
    shape: Shape,
    tile_rows: int,
    block: Int32s,
    mask_of: Callable[[int], int],
    untiled: Collection[int] = (),
) -> int:
    """Lay `rows` out in `block` as `cuda_inputs.InputViews` reads it; returns the words used, pairs included.

    `mask_of`: segment index -> its row of the step's masks, or -1. `untiled`: first rows of runs without query tiles.
    """
    block[: shape.num_words] = -1
    tokens, positions, slots = (block[i * shape.rows : (i + 1) * shape.rows] for i in range(3))
    tiles = block[3 * shape.rows : 3 * shape.rows + 4 * shape.tiles].reshape(-1, 4)
    picks = block[3 * shape.rows + 4 * shape.tiles : shape.num_words].reshape(4, -1)
    num_tiles = num_picks = 0
    tiles[:, 1] = 0
    for run, known in zip(rows.runs, rows.tokens, strict=True):
        end = run.row + run.length
        tokens[run.row : end] = known
        positions[run.row : end] = np.arange(run.start, run.start + run.length) if run.length > 1 else run.start
        slots[run.row : end] = run.slot
        for first in range(0, run.length, tile_rows) if shape.tiles and run.row not in untiled else ():
            tiles[num_tiles] = (run.row + first, min(tile_rows, run.length - first), run.start + first, run.slot)
            num_tiles += 1
        if run.sample:
            picks[:, num_picks] = (end - 1, run.slot, run.start + run.length, mask_of(run.index))
            num_picks += 1
    words = shape.num_words
    for pairs in rows.pairs:
        block[words : words + pairs.size] = pairs.reshape(-1)
        words += pairs.size
    return words
