"""Step inputs on their way to the card: pinned blocks, one copy a step, and views of where the copy lands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from twinpath.engine.cuda_rows import Shape
from twinpath.kernels.prefill_rows.spec import Rows


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


class InputBlocks:
    """A ring of pinned host blocks and the one device block that they are copied to."""

    def __init__(self, num_blocks: int, num_words: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._host = [torch.zeros(num_words, dtype=torch.int32, pin_memory=pinned) for _ in range(num_blocks)]
        self._sent = [make_mark(device) for _ in range(num_blocks)]
        self._device = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._next = 0
        self._views: dict[Shape, InputViews] = {}

    def clear(self) -> None:
        """Make every row of every shape padding."""
        self._device.fill_(-1)

    def take(self) -> tuple[int, Tensor]:
        """The next host block, once its last copy is over."""
        index = self._next
        self._next = (index + 1) % len(self._host)
        self._sent[index].synchronize()
        return index, self._host[index]

    def send(self, index: int, num_words: int) -> None:
        self._device[:num_words].copy_(self._host[index][:num_words], non_blocking=True)
        self._sent[index].record()

    def pairs(self, shape: Shape, num_words: int) -> Tensor:
        """The updates that came behind the rows: int32 [N, 2]."""
        return self._device[shape.num_words : num_words].view(-1, 2)

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
