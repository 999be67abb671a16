"""What the card remembers of every slot: pages, tokens said, sampling settings. The host mirrors what it may compare.

Everything small lives in one tensor of 32-bit words, so that a step's news is one list of (index, value) pairs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinpath.kernels.sampler.spec import NUM_FLOATS, NUM_INTS, SlotState, settings
from twinpath.types import Int32s, SamplingParams

#: Rows of a step and of a page table are padded to this: kernels are compiled once, for aligned addresses.
ALIGNMENT = 16


def aligned(num: int) -> int:
    """`num` rounded up."""
    return -(-num // ALIGNMENT) * ALIGNMENT


class SlotTables:
    """Device tables of `num_slots` slots.

    `tables` int32 [S, max_pages] and `state` are views of (or stand beside) `words`.
    """

    def __init__(self, num_slots: int, vocab_size: int, longest: int, max_pages: int, device: torch.device) -> None:
        width = longest + 1
        self._ints_at = 2 * num_slots * NUM_FLOATS
        self._tables_at = aligned(self._ints_at + 2 * num_slots * NUM_INTS)
        history_at = self._tables_at + num_slots * max_pages
        self.words = torch.zeros(history_at + num_slots * width, dtype=torch.int32, device=device)
        self.tables: Tensor = self.words[self._tables_at : history_at].view(num_slots, max_pages)
        self.history: Tensor = self.words[history_at:].view(num_slots, width)
        self.state = SlotState(
            floats=self.words[: self._ints_at].view(torch.float64).view(num_slots, NUM_FLOATS),
            ints=self.words[self._ints_at : self._ints_at + 2 * num_slots * NUM_INTS]
            .view(torch.int64)
            .view(num_slots, NUM_INTS),
            history=self.history,
            counts=torch.zeros(num_slots, vocab_size, dtype=torch.int32, device=device),
            bias=torch.zeros(num_slots, vocab_size, dtype=torch.float64, device=device),
            biased=torch.zeros(num_slots, -(-vocab_size // 32), dtype=torch.int32, device=device),
            stops=torch.zeros(num_slots, -(-vocab_size // 32), dtype=torch.int32, device=device),
        )
        self._mirror = np.zeros((num_slots, max_pages), np.int32)
        #: What each slot samples by.
        self._sent: list[tuple[SamplingParams, int] | None] = [None] * num_slots
        self._settings_lengths = (2 * NUM_FLOATS, 2 * NUM_INTS)
        self._settings_at = np.concatenate((np.arange(2 * NUM_FLOATS), self._ints_at + np.arange(2 * NUM_INTS)))

    def page_updates(self, slot: int, pages: Int32s) -> Int32s | None:
        """Pairs that make the slot's first pages `pages`, by what was sent before; None when they are already."""
        known = self._mirror[slot, : len(pages)]
        changed = np.flatnonzero(known != pages)
        if not len(changed):
            return None
        known[changed] = pages[changed]
        first = self._tables_at + slot * self._mirror.shape[1]
        return _pairs(first + changed, pages[changed])

    def setting_updates(self, slot: int, params: SamplingParams, num_prompt: int) -> Int32s | None:
        """Pairs that make the slot sample by `params`; None when it does already."""
        if self._sent[slot] == (params, num_prompt):
            return None
        self._sent[slot] = (params, num_prompt)
        floats, ints = settings(params, num_prompt)
        where = self._settings_at + np.repeat((2 * NUM_FLOATS * slot, 2 * NUM_INTS * slot), self._settings_lengths)
        return _pairs(where, np.concatenate((floats.view(np.int32), ints.view(np.int32))))

    @property
    def max_updates(self) -> int:
        """Pairs that one step can bring at most."""
        return int(self._mirror.size) + 2 * (NUM_FLOATS + NUM_INTS) * len(self._mirror)


def _pairs(where: NDArray[np.int64], values: Int32s) -> Int32s:
    pairs: Int32s = np.empty((len(where), 2), np.int32)
    pairs[:, 0] = where
    pairs[:, 1] = values
    return pairs
