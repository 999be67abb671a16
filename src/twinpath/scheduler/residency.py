"""What running sequences hold: an engine slot, pages, and a row of the block tables."""

from __future__ import annotations

import numpy as np

from twinpath.kv import PagePool, PrefixCache
from twinpath.scheduler.sequence import Sequence
from twinpath.types import EngineInfo, Int32s


class Residency:
    """Binds sequences to slots and pages, and keeps the block tables engines read.

    Shapes: block_tables int32 [max_slots, pages of a window], padded with -1.
    """

    def __init__(self, info: EngineInfo, window_tokens: int, pool: PagePool, prefix: PrefixCache) -> None:
        self.block_tables: Int32s = np.full((info.max_slots, -(-window_tokens // info.page_size)), -1, np.int32)
        self.page_size = info.page_size
        self._pool = pool
        self._prefix = prefix
        # Popped from the end: low slots first.
        self._free_slots = list(range(info.max_slots - 1, -1, -1))
        #: Slots given back whose state the engine still has.
        self._releases: set[int] = set()

    @property
    def has_slot(self) -> bool:
        return bool(self._free_slots)

    def bind(self, sequence: Sequence, cached: Int32s) -> None:
        """Give a sequence a slot, and pages that hold the KV of its first tokens."""
        sequence.slot = self._free_slots.pop()
        self._releases.discard(sequence.slot)
        if len(cached):
            self._pool.retain(cached)
            self.block_tables[sequence.slot, : len(cached)] = cached
        sequence.pages = cached.tolist()
        sequence.num_planned = sequence.num_computed = len(cached) * self.page_size
        sequence.num_inserted_pages = len(cached)

    def append(self, sequence: Sequence, pages: list[int]) -> None:
        """More pages, freshly allocated."""
        num_pages = len(sequence.pages)
        if len(pages) == 1:
            self.block_tables[sequence.slot, num_pages] = pages[0]
        else:
            self.block_tables[sequence.slot, num_pages : num_pages + len(pages)] = pages
        sequence.pages += pages

    def num_missing_pages(self, sequence: Sequence, num_tokens: int) -> int:
        """Pages that its first `num_tokens` positions need beside its own."""
        return max(-(-num_tokens // self.page_size) - len(sequence.pages), 0)

    def offer_prefix(self, sequence: Sequence) -> None:
        """Make newly full, computed pages findable."""
        num_full = sequence.num_computed // self.page_size
        if num_full <= sequence.num_inserted_pages:
            return
        keys, first = sequence.keys.extend(sequence.tokens, sequence.num_computed), sequence.num_inserted_pages
        self._prefix.insert(keys[first:num_full], sequence.pages[first:num_full])
        sequence.num_inserted_pages = num_full

    def give_back(self, sequence: Sequence, now_s: float) -> None:
        """Slot and pages; no outstanding plan touches them."""
        row = self.block_tables[sequence.slot, : len(sequence.pages)]
        self._pool.release(row[::-1].copy(), now_s)
        row[:] = -1
        self._free_slots.append(sequence.slot)
        self._releases.add(sequence.slot)
        sequence.slot = -1
        sequence.pages = []

    def take_releases(self) -> tuple[int, ...]:
        """Slots the next plan tells the engine to forget."""
        releases = tuple(self._releases)
        self._releases.clear()
        return releases

    def return_releases(self, releases: tuple[int, ...]) -> None:
        """Their plan did not count; those bound again meanwhile need none."""
        self._releases.update(slot for slot in releases if slot in self._free_slots)

    def check_integrity(self, holders: list[Sequence]) -> None:
        """Raise AssertionError unless exactly `holders` hold all slots and page references that are given out."""
        references = self._pool.pins()
        for sequence in holders:
            row, num_pages = self.block_tables[sequence.slot], len(sequence.pages)
            assert row[:num_pages].tolist() == sequence.pages and (row[num_pages:] == -1).all(), "stale block table"
            references[sequence.pages] += 1
            assert len(set(sequence.pages)) == num_pages, "a page is twice in a block table"
        assert (references == self._pool.references()).all(), "references differ"
        slots = [sequence.slot for sequence in holders]
        assert sorted(slots + self._free_slots) == list(range(len(self.block_tables))), "a slot is lost or shared"
        assert not self._releases & set(slots), "a bound slot is to be released"
