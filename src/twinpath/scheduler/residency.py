"""What running sequences hold: an engine slot, pages, and a row of the block tables."""

from __future__ import annotations

import numpy as np

from twinpath.kv import PagePool, PrefixCache
from twinpath.scheduler.sequence import Sequence
from twinpath.types import EngineInfo, Int32s


class Residency:
    """Binds sequences to slots and pages, finds cached prefixes for them, and keeps the block tables engines read.

    Shapes: block_tables int32 [max_slots, pages of a window], padded with -1.
    """

    def __init__(self, info: EngineInfo, window_tokens: int, enable_prefix_caching: bool) -> None:
        self.pool = PagePool(info.num_pages)
        self.prefix = PrefixCache(self.pool)
        self.block_tables: Int32s = np.full((info.max_slots, -(-window_tokens // info.page_size)), -1, np.int32)
        self._page_size = info.page_size
        self._enable_prefix_caching = enable_prefix_caching
        # Popped from the end: low slots first.
        self._free_slots = list(range(info.max_slots - 1, -1, -1))
        #: Slots given back whose state the engine still has.
        self._releases: set[int] = set()

    def admit(self, sequence: Sequence, num_spare_pages: int) -> bool:
        """Give a sequence a slot and pages for its known tokens, if `num_spare_pages` remain beside; else nothing."""
        if not self._free_slots:
            return False
        cached = self._find_cached(sequence)
        num_pages = -(-sequence.num_known // self._page_size)
        num_idle = sum(map(self.pool.is_idle, cached))
        if num_pages - len(cached) + num_idle + num_spare_pages > self.pool.num_available:
            return False
        sequence.slot = self._free_slots.pop()
        self._releases.discard(sequence.slot)
        for page in cached:  # All of them first: what is allocated next must not evict one.
            self.pool.retain(page)
            self._append_page(sequence, page)
        while len(sequence.pages) < num_pages:
            self._append_page(sequence, self.pool.allocate())
        sequence.num_planned = sequence.num_computed = len(cached) * self._page_size
        sequence.num_inserted_pages = len(cached)
        if not sequence.started:
            sequence.cached_tokens = min(sequence.num_computed, sequence.num_prompt)
            self.prefix.num_queried_tokens += sequence.num_prompt
            self.prefix.num_hit_tokens += sequence.cached_tokens
        return True

    def num_cached(self, sequence: Sequence) -> int:
        """Known tokens whose KV is there now; asked before admission."""
        return len(self._find_cached(sequence)) * self._page_size

    def needs_page(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether the first `num_tokens` positions reach past its pages."""
        return len(sequence.pages) * self._page_size < num_tokens

    def num_missing_pages(self, sequence: Sequence, num_tokens: int) -> int:
        """Pages that its first `num_tokens` positions need beside its own."""
        return max(-(-num_tokens // self._page_size) - len(sequence.pages), 0)

    def extend(self, sequence: Sequence) -> bool:
        """One more page; False when there is none."""
        if not self.pool.num_available:
            return False
        self._append_page(sequence, self.pool.allocate())
        return True

    def offer_prefix(self, sequence: Sequence) -> None:
        """Make newly full, computed pages findable."""
        num_full = sequence.num_computed // self._page_size
        if num_full <= sequence.num_inserted_pages or not self._enable_prefix_caching:
            return
        keys = sequence.keys.extend(sequence.tokens, sequence.num_computed)
        for index in range(sequence.num_inserted_pages, num_full):
            self.prefix.insert(keys[index], sequence.pages[index])
        sequence.num_inserted_pages = num_full

    def give_back(self, sequence: Sequence) -> None:
        """Slot and pages; no outstanding plan touches them."""
        self.block_tables[sequence.slot, : len(sequence.pages)] = -1
        self.pool.release(reversed(sequence.pages))
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
        self.pool.check_integrity()
        self.prefix.check_integrity()
        references = [0] * self.pool.num_pages
        for sequence in holders:
            row, num_pages = self.block_tables[sequence.slot], len(sequence.pages)
            assert row[:num_pages].tolist() == sequence.pages and (row[num_pages:] == -1).all(), "stale block table"
            for page in sequence.pages:
                references[page] += 1
        assert references == [self.pool.references(page) for page in range(self.pool.num_pages)], "references differ"
        slots = [sequence.slot for sequence in holders]
        assert sorted(slots + self._free_slots) == list(range(len(self.block_tables))), "a slot is lost or shared"
        assert not self._releases & set(slots), "a bound slot is to be released"

    def _append_page(self, sequence: Sequence, page: int) -> None:
        self.block_tables[sequence.slot, len(sequence.pages)] = page
        sequence.pages.append(page)

    def _find_cached(self, sequence: Sequence) -> list[int]:
        """Cached pages of its known tokens; at least one token is left to compute, for its logits."""
        if not self._enable_prefix_caching or sequence.prompt_logprobs is not None:
            return []
        keys = sequence.keys.extend(sequence.tokens, sequence.num_known)
        return self.prefix.find(keys[: (sequence.num_known - 1) // self._page_size])
