"""The pool of page ids: who references them, what is kept for sessions, and the order of what is cold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from twinpath.types import Int32s


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Every page once, by what it is for; a page that is several things counts as the first of them."""

    #: Held by templates.
    pinned: int
    #: Referenced by requests that run.
    running: int
    #: Idle, and claimed by a session.
    session: int
    #: Idle prefixes that nobody claims.
    prefix: int
    free: int


class PagePool:
    """Page ids 0..num_pages-1, each in exactly one state: free, referenced, or idle (cached, nobody references it).

    A page that holds a reusable prefix is marked cached; when its last reference goes it becomes idle instead of free.
    Idle pages with a claim are *kept*; those without are *cold* and lie in order of their release. A claim is no
    reference: whoever needs pages may drop claims, and every idle page is available. `listeners` are told of all pages
    that lose their content.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 0
        self.num_pages = num_pages
        self.listeners: list[Callable[[list[int]], None]] = []
        # Popped from the end: low ids first, so that a lightly used pool touches little memory.
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = np.zeros(num_pages, np.int32)
        #: References that are pins, and pages that have any.
        self._pins = np.zeros(num_pages, np.int32)
        self._num_pinned = 0
        self._claims = np.zeros(num_pages, np.int32)
        self._num_claims = 0
        self._num_kept = 0
        self._cached = np.zeros(num_pages, np.bool_)
        #: Page -> when it was released, oldest first.
        self._cold: OrderedDict[int, float] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cold(self) -> int:
        """Idle pages nobody claims."""
        return len(self._cold)

    @property
    def num_kept(self) -> int:
        """Idle pages with a claim."""
        return self._num_kept

    @property
    def num_idle(self) -> int:
        """Cached pages nobody references."""
        return len(self._cold) + self._num_kept

    @property
    def num_available(self) -> int:
        """Pages that can be handed out when everything idle gives way."""
        return len(self._free) + len(self._cold) + self._num_kept

    @property
    def num_pinned(self) -> int:
        return self._num_pinned

    @property
    def num_used(self) -> int:
        """Pages that requests reference, pinned ones aside."""
        return self.num_pages - self.num_available - self._num_pinned

    @property
    def oldest_cold_s(self) -> float:
        """When the first cold page was released; infinite when there is none."""
        return next(iter(self._cold.values()), inf)

    def counts(self) -> PageCounts:
        return PageCounts(self._num_pinned, self.num_used, self._num_kept, len(self._cold), len(self._free))

    def num_idle_among(self, pages: Int32s) -> tuple[int, int]:
        """How many of `pages` are cold, and how many kept."""
        if not len(pages):
            return 0, 0
        idle = self._references[pages] == 0
        num_kept = int(np.count_nonzero(idle & (self._claims[pages] > 0)))
        return int(np.count_nonzero(idle)) - num_kept, num_kept

    # ----------------------------------------------------------------------------------------------- references

    def allocate(self) -> int:
        """A free page, with one reference and no content. The caller has seen to it that there is one."""
        return self.allocate_run(1)[0]

    def allocate_run(self, num_pages: int) -> list[int]:
        """As many free pages at once."""
        if num_pages == 1:  # What streams ask for, one by one.
            page = self._free.pop()
            self._references[page] = 1
            return [page]
        run = self._free[-num_pages:]
        assert len(run) == num_pages > 0
        del self._free[-num_pages:]
        run.reverse()
        self._references.put(run, 1)
        return run

    def retain(self, pages: Int32s) -> None:
        """One more reference to each of `pages`, which are referenced or idle."""
        idle = pages[self._references[pages] == 0]
        self._references[pages] += 1
        if len(idle):
            is_kept = self._claims[idle] > 0
            self._num_kept -= int(np.count_nonzero(is_kept))
            for page in idle[~is_kept].tolist():
                del self._cold[page]

    def release(self, pages: Int32s, now_s: float = 0.0) -> None:
        """Drop one reference of each. Pass pages last first: a sequence's tail is then taken back before its head."""
        if not len(pages):
            return
        references = self._references[pages] - 1
        assert references.min() >= 0, "a page was released more often than retained"
        self._references[pages] = references
        left = pages[references == 0]
        if self._num_claims:
            is_kept = self._claims[left] > 0
            self._num_kept += int(np.count_nonzero(is_kept))
            left = left[~is_kept]
        is_cached = self._cached[left]
        self._cold.update(dict.fromkeys(left[is_cached].tolist(), now_s))
        self._free += left[~is_cached].tolist()

    def pin(self, pages: Int32s) -> None:
        """A reference that is accounted as a pin."""
        self.retain(pages)
        self._num_pinned += int(np.count_nonzero(self._pins[pages] == 0))
        self._pins[pages] += 1

    def unpin(self, pages: Int32s, now_s: float = 0.0) -> None:
        self._pins[pages] -= 1
        self._num_pinned -= int(np.count_nonzero(self._pins[pages] == 0))
        self.release(pages, now_s)

    # --------------------------------------------------------------------------------------------------- content

    def mark_cached(self, pages: list[int]) -> None:
        """These referenced pages now hold reusable prefixes."""
        if len(pages) == 1:
            (page,) = pages
            assert self._references[page]
            self._cached[page] = True
            return
        index = np.array(pages, np.intp)
        assert np.count_nonzero(self._references[index]) == len(pages)
        self._cached[index] = True

    def is_exclusive(self, page: int) -> bool:
        """Whether one request holds it and nobody else has a use for it."""
        return bool(self._references[page] == 1 and self._claims[page] == 0)

    def unmark_cached(self, page: int) -> None:
        """This referenced page, which nobody claims, is no reusable prefix any more: it is free when it is released."""
        assert self._references[page] > 0 and self._claims[page] == 0
        self._lose_content([page])

    def claim(self, pages: Int32s) -> None:
        """One more claim on each of `pages`, which are cached."""
        new: Int32s = pages[(self._claims[pages] == 0) & (self._references[pages] == 0)]
        self._claims[pages] += 1
        self._num_claims += len(pages)
        self._num_kept += len(new)
        for page in new.tolist():
            del self._cold[page]

    def unclaim(self, pages: Int32s) -> Int32s:
        """Drop one claim of each; those that nobody claims or references any more become the first of the cold ones,
        the last of `pages` before all, and are returned."""
        self._claims[pages] -= 1
        self._num_claims -= len(pages)
        left: Int32s = pages[(self._claims[pages] == 0) & (self._references[pages] == 0)]
        self._num_kept -= len(left)
        for page in left.tolist():
            self._cold[page] = -inf
            self._cold.move_to_end(page, last=False)
        return left

    def is_cold(self, page: int) -> bool:
        return page in self._cold

    def evict(self, pages: list[int]) -> None:
        """Cold pages lose their content and are free."""
        for page in pages:
            del self._cold[page]
        self._drop(pages)

    def evict_oldest(self, num_pages: int = 1, until_s: float = inf) -> None:
        """The page that is cold for longest loses its content and is free; and as many as to make `num_pages` of the
        next ones, as far as they were released by `until_s`."""
        cold = self._cold
        lost = [cold.popitem(last=False)[0]]
        while len(lost) < num_pages and cold and (until_s == inf or self.oldest_cold_s <= until_s):
            lost.append(cold.popitem(last=False)[0])
        self._drop(lost)

    def forget_cold(self) -> int:
        """Free every cold page; returns how many."""
        pages = list(self._cold)
        self.evict(pages)
        return len(pages)

    def _drop(self, pages: list[int]) -> None:
        self._lose_content(pages)
        self._free += pages

    def _lose_content(self, pages: list[int]) -> None:
        if len(pages) == 1:
            self._cached[pages[0]] = False
        else:
            self._cached[pages] = False
        for listener in self.listeners:
            listener(pages)

    # ------------------------------------------------------------------------------------------------- integrity

    def references(self) -> Int32s:
        """Per page, pins included. A copy."""
        return self._references.copy()

    def claims(self) -> Int32s:
        """Per page. A copy."""
        return self._claims.copy()

    def pins(self) -> Int32s:
        """Per page. A copy."""
        return self._pins.copy()

    def cached_pages(self) -> list[int]:
        """Every page marked cached, referenced or idle."""
        pages: list[int] = np.flatnonzero(self._cached).tolist()
        return pages

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page is in exactly one state and all counts are right."""
        free, cold = set(self._free), set(self._cold)
        referenced = set(np.flatnonzero(self._references).tolist())
        kept = set(np.flatnonzero(self._claims).tolist()) - referenced
        assert (self._references >= self._pins).all() and (self._pins >= 0).all(), "more pins than references"
        assert (self._claims >= 0).all() and self._claims.sum() == self._num_claims, "claims are miscounted"
        assert len(free) == len(self._free), "a page is free twice"
        states = (free, cold, kept, referenced)
        assert len(set().union(*states)) == sum(map(len, states)), "a page is in two states"
        assert sum(map(len, states)) == self.num_pages, "a page is lost"
        assert self._cached[sorted(cold | kept)].all(), "an idle page is not cached"
        assert not self._cached[sorted(free)].any(), "a free page is cached"
        assert len(kept) == self._num_kept, "kept pages are miscounted"
        assert np.count_nonzero(self._pins) == self._num_pinned, "pinned pages are miscounted"
        times = list(self._cold.values())
        assert times == sorted(times), "cold pages are not in order"
