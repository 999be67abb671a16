"""The pool of page ids: reference counts, and the order in which idle cached pages are taken back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class PagePool:
    """Page ids 0..num_pages-1, each in exactly one state: free, referenced, or idle (cached, nobody references it).

    A page that holds a reusable prefix is marked cached; when its last reference goes it becomes idle instead of
    free, and idle pages are taken back oldest first when no free page is left. `on_evict` is told, so that the prefix
    index forgets the page.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 0
        self.num_pages = num_pages
        self.on_evict: Callable[[int], None] = lambda page: None
        # Popped from the end: low ids first, so that a lightly used pool touches little memory.
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages
        self._cached = bytearray(num_pages)
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can still hand out."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Pages somebody references."""
        return self.num_pages - len(self._free) - len(self._idle)

    @property
    def num_idle(self) -> int:
        """Cached pages nobody references."""
        return len(self._idle)

    def is_idle(self, page: int) -> bool:
        return page in self._idle

    def allocate(self) -> int:
        """A page with one reference and no content. The caller has checked `num_available`."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._cached[page] = 0
            self.on_evict(page)
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """One more reference to a referenced or idle page."""
        if self._references[page] == 0:
            del self._idle[page]
        self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference of each. Pass pages last first: a sequence's tail is then taken back before its head."""
        for page in pages:
            count = self._references[page] = self._references[page] - 1
            assert count >= 0, f"page {page} released more often than retained"
            if count:
                continue
            if self._cached[page]:
                self._idle[page] = None
            else:
                self._free.append(page)

    def mark_cached(self, page: int) -> None:
        """This referenced page now holds a reusable prefix."""
        assert self._references[page] > 0
        self._cached[page] = 1

    def forget_idle(self) -> int:
        """Free every idle page; returns how many."""
        count = len(self._idle)
        while self._idle:
            page, _ = self._idle.popitem(last=False)
            self._cached[page] = 0
            self.on_evict(page)
            self._free.append(page)
        return count

    def references(self, page: int) -> int:
        return self._references[page]

    def cached_pages(self) -> list[int]:
        """Every page marked cached, referenced or idle."""
        return [page for page in range(self.num_pages) if self._cached[page]]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page is in exactly one state."""
        free, idle = set(self._free), set(self._idle)
        referenced = {page for page, count in enumerate(self._references) if count}
        assert len(free) == len(self._free), "a page is free twice"
        assert all(count >= 0 for count in self._references), "negative reference count"
        assert not free & idle and not free & referenced and not idle & referenced, "a page is in two states"
        assert len(free) + len(idle) + len(referenced) == self.num_pages, "a page is lost"
        assert all(self._cached[page] for page in idle), "an idle page is not cached"
        assert not any(self._cached[page] for page in free), "a free page is cached"
