"""Residual streams of chunks that run slice by slice: they stay on the card, named by the plan's array."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from twinpath.errors import EngineError
from twinpath.types import Float32s


class ResidualStore:
    """A few buffers [max_rows, hidden] float32; the one not used for longest is given away when all are taken."""

    def __init__(self, num: int, max_rows: int, hidden_size: int, device: torch.device) -> None:
        self._free = [torch.zeros(max_rows, hidden_size, dtype=torch.float32, device=device) for _ in range(num)]
        #: id of the array -> (the array, if it still lives; its buffer); least recently used first.
        self._kept: dict[int, tuple[weakref.ref[Float32s], Tensor]] = {}

    def begin(self, array: Float32s) -> Tensor:
        """A buffer [max_rows, hidden] for the chunk that `array` names, from its first layer on."""
        kept = self._kept.pop(id(array), None)
        if kept is not None:
            buffer = kept[1]
        elif self._free:
            buffer = self._free.pop()
        else:
            dead = [key for key, (ref, _) in self._kept.items() if ref() is None]
            buffer = self._kept.pop(dead[0] if dead else next(iter(self._kept)))[1]
        self._kept[id(array)] = (weakref.ref(array), buffer)
        return buffer

    def resume(self, array: Float32s) -> Tensor:
        """The buffer that an earlier slice of the chunk left.

        Raises: EngineError when it is gone: more chunks are between slices than there are buffers.
        """
        kept = self._kept.pop(id(array), None)
        if kept is None or kept[0]() is not array:
            raise EngineError("the chunk's residual is not on the device any more: it must begin at layer 0 again")
        self._kept[id(array)] = kept
        return kept[1]
