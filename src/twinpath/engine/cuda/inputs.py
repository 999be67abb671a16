"""Step inputs on their way to the card: pinned blocks, which the card fetches, and views of where they land."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from twinpath.engine.cuda.ops import Operation
from twinpath.engine.cuda.rows import Shape
from twinpath.kernels.prefill_rows.spec import Rows
from twinpath.types import Int32s

#: Words before a block's rows: how many words of rows there are, and how many pairs.
HEADER = 2


class Mark(Protocol):
    """A point in the device's work."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class HostMark:
    """The CPU's: its work is done when the call returns."""

    def record(self) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


def make_mark(device: torch.device) -> Mark:
    if device.type == "cpu":
        return HostMark()
    mark: Mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return mark


_MAX_VIEWS = 256


@dataclass(frozen=True, slots=True)
class InputViews:
    """A step's inputs on the device.

    Shapes: picked, slots, positions, masks int32 [P]: of each sampled row its row in the step, slot, position to draw
        and mask row; -1 for padding.
    """

    rows: Rows
    picked: Tensor
    slots: Tensor
    positions: Tensor
    masks: Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a step brings: words int32 [N] as `InputViews` reads its rows, then pairs (index, value) for the tables."""

    words: Int32s
    num_row_words: int


class InputBlocks:
    """A ring of pinned host blocks, and the one device block that the card fetches the next of them to.

    Card and host count the blocks, so a captured graph can begin with "fetch the next": a step that is replayed needs
    no copy, and no launch, before it.
    """

    def __init__(self, num_blocks: int, num_words: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._ring = torch.zeros(num_blocks, HEADER + num_words, dtype=torch.int32, pin_memory=pinned)
        self._fetched = torch.zeros(1, dtype=torch.int64, pin_memory=pinned)
        self._rows, self._num_fetched = self._ring.numpy(), self._fetched.numpy()
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)
        self._device = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._num_put = 0
        self._views: dict[Shape, InputViews] = {}

    def clear(self) -> None:
        """Make every row of every shape padding, and count from zero; nothing may be under way."""
        if self._device.is_cuda:
            torch.cuda.synchronize()
        self._device.fill_(-1)
        self._rows[:, :HEADER] = 0
        self._turn.zero_()
        self._num_fetched[0] = self._num_put = 0

    def put(self, inputs: StepInputs) -> None:
        """The block after the last. Waits for the card where it has not fetched the ring's oldest."""
        while self._num_put - int(self._num_fetched[0]) >= len(self._rows):
            time.sleep(0)
        row, size = self._rows[self._num_put % len(self._rows)], len(inputs.words)
        row[HEADER : HEADER + size] = inputs.words
        row[:HEADER] = inputs.num_row_words, (size - inputs.num_row_words) // 2
        self._num_put += 1

    def fetch(self, operation: Operation, words: Tensor) -> None:
        """The next block that was put, or is put before a captured `fetch` runs; its pairs go into `words`."""
        operation(self._ring, self._turn, self._fetched, self._device, words)

    def views(self, shape: Shape, tables: Tensor, history: Tensor) -> InputViews:
        """Where a block of `shape` lands; the same addresses every time, for the same `tables` and `history`."""
        views = self._views.get(shape)
        if views is None:
            # Few shapes occur often: those of graphs, and of whole chunks.
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            views = self._views[shape] = self._make_views(shape, tables, history)
        return views

    def _make_views(self, shape: Shape, tables: Tensor, history: Tensor) -> InputViews:
        rows, tiles, picks = shape.rows, shape.tiles, shape.picks
        block, at = self._device, 3 * rows + 4 * tiles
        return InputViews(
            rows=Rows(
                tokens=block[:rows],
                positions=block[rows : 2 * rows],
                slots=block[2 * rows : 3 * rows],
                tiles=block[3 * rows : at].view(tiles, 4),
                tables=tables,
                history=history,
            ),
            picked=block[at : at + picks],
            slots=block[at + picks : at + 2 * picks],
            positions=block[at + 2 * picks : at + 3 * picks],
            masks=block[at + 3 * picks : at + 4 * picks],
        )
