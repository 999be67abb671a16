"""The pool gives every page to exactly one state, and takes cold pages back oldest first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twinpath.kv import PageCounts, PagePool
from twinpath.types import Int32s

NUM_PAGES = 6


def ids(*pages: int) -> Int32s:
    return np.array(pages, np.int32)


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a model of it: references, pins and claims per page, and cold pages in order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.lost: list[int] = []
        self.pool.listeners.append(self.lost.extend)
        self.references: dict[int, int] = {}
        self.pins: dict[int, int] = {}
        self.claims: dict[int, int] = {}
        self.cached: set[int] = set()
        self.cold: list[int] = []
        self.now_s = 0.0

    def known(self) -> list[int]:
        return sorted({*self.references, *self.cold, *self.claims})

    def rest(self, page: int) -> None:
        """Nobody references it any more."""
        if page in self.cached and not self.claims.get(page):
            self.cold.append(page)

    @precondition(lambda self: self.pool.num_free)
    @rule()
    def allocate(self) -> None:
        page = self.pool.allocate()
        assert page not in self.known()
        self.references[page] = 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def mark_cached(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.references)))
        self.pool.mark_cached([page])
        self.cached.add(page)

    @precondition(lambda self: self.known())
    @rule(data=st.data(), pin=st.booleans())
    def retain(self, data: st.DataObject, pin: bool) -> None:
        pages = data.draw(st.lists(st.sampled_from(self.known()), unique=True, min_size=1))
        (self.pool.pin if pin else self.pool.retain)(ids(*pages))
        for page in pages:
            if page in self.cold:
                self.cold.remove(page)
            self.references[page] = self.references.get(page, 0) + 1
            if pin:
                self.pins[page] = self.pins.get(page, 0) + 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        free_to_go = [page for page, count in self.references.items() if count > self.pins.get(page, 0)]
        if free_to_go:
            self.drop(data.draw(st.lists(st.sampled_from(sorted(free_to_go)), unique=True, min_size=1)), pinned=False)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        self.drop(data.draw(st.lists(st.sampled_from(sorted(self.pins)), unique=True, min_size=1)), pinned=True)

    def drop(self, pages: list[int], *, pinned: bool) -> None:
        self.now_s += 1.0
        (self.pool.unpin if pinned else self.pool.release)(ids(*pages), self.now_s)
        for page in pages:
            if pinned:
                self.pins[page] -= 1
                if not self.pins[page]:
                    del self.pins[page]
            self.references[page] -= 1
            if not self.references[page]:
                del self.references[page]
                self.rest(page)

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.cached)), unique=True, min_size=1))
        self.pool.claim(ids(*pages))
        for page in pages:
            self.claims[page] = self.claims.get(page, 0) + 1
            if page in self.cold:
                self.cold.remove(page)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def unclaim(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.claims)), unique=True, min_size=1))
        left = self.pool.unclaim(ids(*pages)).tolist()
        expected = []
        for page in pages:
            self.claims[page] -= 1
            if not self.claims[page]:
                del self.claims[page]
                if page not in self.references:
                    expected.append(page)
        assert left == expected
        self.cold[:0] = reversed(expected)

    @precondition(lambda self: self.cold)
    @rule(num_pages=st.integers(1, 3))
    def evict_oldest(self, num_pages: int) -> None:
        self.lost.clear()
        self.pool.evict_oldest(num_pages)
        assert self.lost == self.cold[:num_pages]
        del self.cold[:num_pages]
        self.cached -= set(self.lost)

    @rule()
    def forget_cold(self) -> None:
        assert self.pool.forget_cold() == len(self.cold)
        self.cached -= set(self.cold)
        self.cold.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_integrity()
        kept = set(self.claims) - set(self.references)
        running = len(set(self.references) - set(self.pins))
        free = NUM_PAGES - len(self.references) - len(self.cold) - len(kept)
        assert self.pool.counts() == PageCounts(len(self.pins), running, len(kept), len(self.cold), free)
        assert self.pool.num_available == NUM_PAGES - len(self.references)
        assert self.pool.cached_pages() == sorted(self.cached)
        assert list(self.pool._cold) == self.cold


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_a_run_is_as_many_pages_and_what_was_released_late_stays() -> None:
    pool = PagePool(8)
    run = pool.allocate_run(5)
    assert sorted(run) == [0, 1, 2, 3, 4] and pool.num_free == 3
    pool.mark_cached(run)
    for time_s, page in enumerate(run):
        pool.release(ids(page), time_s)
    pool.evict_oldest(4, until_s=2.0)
    assert pool.num_free == 6 and pool.cached_pages() == sorted(run[3:])
    pool.evict_oldest(4, until_s=2.0)
    assert pool.cached_pages() == run[4:]


def test_releasing_more_often_than_retained_is_an_error() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    pool.release(ids(page))
    with pytest.raises(AssertionError, match="more often"):
        pool.release(ids(page))


def test_integrity_check_sees_a_lost_page() -> None:
    pool = PagePool(2)
    pool._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity()


def test_integrity_check_sees_a_page_in_two_states() -> None:
    pool = PagePool(2)
    pool._free.append(pool.allocate())
    with pytest.raises(AssertionError, match="two states"):
        pool.check_integrity()


def test_pages_of_a_sequence_are_taken_back_from_its_tail() -> None:
    pool = PagePool(3)
    lost: list[int] = []
    pool.listeners.append(lost.extend)
    head, middle, tail = (pool.allocate() for _ in range(3))
    for page in (head, middle, tail):
        pool.mark_cached([page])
    pool.release(ids(tail, middle, head))
    for _ in range(3):
        pool.evict_oldest()
    assert lost == [tail, middle, head]


def test_idle_pages_are_counted_by_kind_among_given_ones() -> None:
    pool = PagePool(3)
    pages = ids(*(pool.allocate() for _ in range(3)))
    for page in pages.tolist():
        pool.mark_cached([page])
    pool.claim(pages[:1])
    pool.release(pages[:2])
    assert pool.num_idle_among(pages) == (1, 1)
