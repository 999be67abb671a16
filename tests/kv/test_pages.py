"""The pool gives every page to exactly one state, and takes idle pages back oldest first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twinpath.kv import PagePool

NUM_PAGES = 6


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a model of it: references per page, and idle pages in order of release."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.evicted: list[int] = []
        self.pool.on_evict = self.evicted.append
        self.references: dict[int, int] = {}
        self.cached: set[int] = set()
        self.idle: list[int] = []

    @precondition(lambda self: self.pool.num_available)
    @rule()
    def allocate(self) -> None:
        num_free = NUM_PAGES - len(self.references) - len(self.idle)
        self.evicted.clear()
        page = self.pool.allocate()
        if num_free:
            assert not self.evicted and page not in self.references and page not in self.idle
        else:
            assert self.evicted == [page] and self.idle.pop(0) == page
            self.cached.remove(page)
        self.references[page] = 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def mark_cached(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.references)))
        self.pool.mark_cached(page)
        self.cached.add(page)

    @precondition(lambda self: self.references or self.idle)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted([*self.references, *self.idle])))
        self.pool.retain(page)
        if page in self.idle:
            self.idle.remove(page)
        self.references[page] = self.references.get(page, 0) + 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.references)))
        self.pool.release([page])
        self.references[page] -= 1
        if not self.references[page]:
            del self.references[page]
            if page in self.cached:
                self.idle.append(page)

    @rule()
    def forget_idle(self) -> None:
        assert self.pool.forget_idle() == len(self.idle)
        self.cached -= set(self.idle)
        self.idle.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_used == len(self.references)
        assert self.pool.num_idle == len(self.idle)
        assert self.pool.num_available == NUM_PAGES - len(self.references)
        assert self.pool.cached_pages() == sorted(self.cached)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_releasing_more_often_than_retained_is_an_error() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    pool.release([page])
    with pytest.raises(AssertionError, match="more often"):
        pool.release([page])


def test_integrity_check_sees_a_lost_page() -> None:
    pool = PagePool(2)
    pool._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity()


def test_pages_of_a_sequence_are_taken_back_from_its_tail() -> None:
    pool = PagePool(3)
    head, middle, tail = (pool.allocate() for _ in range(3))
    for page in (head, middle, tail):
        pool.mark_cached(page)
    pool.release(reversed([head, middle, tail]))
    assert [pool.allocate() for _ in range(3)] == [tail, middle, head]
