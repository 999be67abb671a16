"""Sessions keep pages softly: fresh ones longest, the tail of a context first, and nothing beyond their time."""

from __future__ import annotations

import numpy as np
import pytest

from twinpath.kv import Chain, PagePool, PrefixCache, PrefixKeys, Session, SessionTable
from twinpath.kv.sessions import MAX_CHAINS
from twinpath.types import Int32s

SIZE = 4
TTL_S = 1000.0


class Shelf:
    """A pool, its index, its sessions, and turns that computed something."""

    def __init__(self, num_pages: int = 32) -> None:
        self.pool = PagePool(num_pages)
        self.prefix = PrefixCache(self.pool)
        self.sessions = SessionTable(self.pool, TTL_S)

    def compute(self, *tokens: int, salt: str = "") -> Chain:
        """Pages as a running request leaves them: referenced, cached."""
        array = np.array(tokens, np.int32)
        keys = PrefixKeys(SIZE, salt).extend(array, len(array))
        found = self.prefix.find(keys)
        self.pool.retain(np.array(found, np.int32))
        pages = [*found, *(self.pool.allocate() for _ in keys[len(found) :])]
        for key, page in zip(keys, pages, strict=True):
            self.prefix.insert([key], [page])
        return Chain(array[: len(keys) * SIZE], list(keys), np.array(pages, np.int32), salt)

    def turn(self, key: str, *tokens: int, now_s: float) -> Chain:
        """A whole turn of a session."""
        session = self.sessions.begin(key, "tenant", key, now_s)
        context = self.compute(*tokens)
        self.sessions.keep(session, context)
        self.pool.release(context.pages[::-1].copy(), now_s)
        self.sessions.end(session, now_s)
        self.check()
        return context

    def found(self, key: str, *tokens: int) -> int:
        """Pages that a turn of this session would start with."""
        session = self.sessions.get(key)
        assert session is not None
        array = np.array(tokens, np.int32)
        found = self.sessions.find(session, array, len(array), "")
        return 0 if found is None else found[1]

    def check(self) -> None:
        self.pool.check_integrity()
        self.prefix.check_integrity()
        self.sessions.check_integrity()


def ids(begin: int, num_pages: int) -> tuple[int, ...]:
    return tuple(range(begin, begin + num_pages * SIZE))


def test_a_context_is_kept_until_its_time_is_over_and_its_pages_are_free_then() -> None:
    shelf = Shelf()
    shelf.turn("s", *ids(0, 5), now_s=0.0)
    assert (shelf.pool.num_kept, shelf.pool.num_cold) == (5, 0)
    assert shelf.sessions.next_expiry_s == TTL_S
    shelf.sessions.expire(TTL_S - 0.001)
    assert shelf.found("s", *ids(0, 6)) == 5
    shelf.sessions.expire(TTL_S)
    assert len(shelf.sessions) == 0 and shelf.pool.num_free == 32
    shelf.check()


def test_each_turn_starts_the_time_again() -> None:
    shelf = Shelf()
    shelf.turn("s", *ids(0, 2), now_s=0.0)
    shelf.turn("s", *ids(0, 3), now_s=900.0)
    shelf.sessions.expire(1800.0)
    assert shelf.found("s", *ids(0, 3)) == 3
    assert shelf.sessions.next_expiry_s == 1900.0


def test_a_turn_that_runs_keeps_its_session_alive() -> None:
    shelf = Shelf()
    shelf.turn("s", *ids(0, 2), now_s=0.0)
    session = shelf.sessions.begin("s", "tenant", "s", 50.0)
    shelf.sessions.expire(10_000.0)
    assert not session.closed
    shelf.sessions.end(session, 10_000.0)
    shelf.sessions.expire(10_000.0 + TTL_S)
    assert session.closed


def test_the_next_turn_replaces_the_context_that_it_continues() -> None:
    shelf = Shelf()
    shelf.turn("s", *ids(0, 2), now_s=0.0)
    shelf.turn("s", *ids(0, 4), now_s=1.0)
    session = shelf.sessions.get("s")
    assert session is not None and len(session.chains) == 1 and session.num_pages == 4
    # A shorter one, as after an edit of the last message, loses nothing.
    shelf.turn("s", *ids(0, 3), now_s=2.0)
    assert session.num_pages == 4


def test_sub_agents_of_one_session_have_contexts_of_their_own() -> None:
    shelf = Shelf(num_pages=64)
    for agent in range(MAX_CHAINS + 1):
        shelf.turn("s", *ids(0, 2), *ids(1000 * (agent + 1), 1), now_s=float(agent))
    session = shelf.sessions.get("s")
    assert session is not None and len(session.chains) == MAX_CHAINS
    assert session.num_pages == 2 + MAX_CHAINS
    # The one unused for longest was let go, but for what it shares.
    assert shelf.found("s", *ids(0, 2), *ids(1000, 1)) == 2
    assert shelf.found("s", *ids(0, 2), *ids(2000, 1)) == 3


def test_the_tail_goes_first_and_the_rest_still_hits() -> None:
    shelf = Shelf(num_pages=6)
    shelf.turn("s", *ids(0, 6), now_s=0.0)
    assert shelf.sessions.give_way() and shelf.pool.num_free == 1
    assert shelf.found("s", *ids(0, 6)) == 5
    shelf.check()


def test_sessions_give_way_in_the_order_in_which_they_fade() -> None:
    shelf = Shelf(num_pages=6)
    for _ in range(4):
        shelf.turn("often", *ids(0, 2), now_s=0.0)
    shelf.turn("once", *ids(1000, 2), now_s=10.0)
    shelf.turn("later", *ids(2000, 2), now_s=400.0)
    assert shelf.sessions.next_fade_s == 10.0 + TTL_S / 2
    kept = []
    for _ in range(6):
        assert shelf.sessions.give_way()
        kept.append([session.num_pages for key in ("often", "once", "later") if (session := shelf.sessions.get(key))])
    assert kept == [[2, 1, 2], [2, 0, 2], [1, 0, 2], [0, 0, 2], [0, 0, 1], [0, 0, 0]]
    assert not shelf.sessions.give_way()
    shelf.check()


def test_nothing_that_fades_later_than_asked_gives_way() -> None:
    shelf = Shelf(num_pages=2)
    shelf.turn("s", *ids(0, 2), now_s=0.0)
    assert not shelf.sessions.give_way(before_s=TTL_S / 2)
    assert shelf.sessions.give_way(before_s=TTL_S / 2 + 0.1)


@pytest.mark.parametrize(("ttl_s", "fade_s"), [(20.0, 20.0), (100.0, 90.0), (300.0, 150.0)])
def test_a_tool_pause_is_survived_after_the_first_turn(ttl_s: float, fade_s: float) -> None:
    shelf = Shelf()
    shelf.sessions.ttl_s = ttl_s
    shelf.turn("s", *ids(0, 2), now_s=0.0)
    assert shelf.sessions.next_fade_s == fade_s


def test_a_shared_page_stays_while_anybody_claims_it() -> None:
    shelf = Shelf()
    shelf.turn("a", *ids(0, 2), *ids(1000, 1), now_s=0.0)
    shelf.turn("b", *ids(0, 2), *ids(2000, 1), now_s=1.0)
    assert shelf.pool.num_kept == 4
    assert shelf.sessions.close("a")
    assert shelf.pool.num_kept == 3 and shelf.found("b", *ids(0, 2), *ids(2000, 1)) == 3
    shelf.check()


def test_what_requests_without_a_session_use_stays_as_a_prefix() -> None:
    shelf = Shelf()
    shelf.turn("s", *ids(0, 3), now_s=0.0)
    shared = shelf.compute(*ids(0, 2))
    shelf.sessions.note_public(shared.pages)
    shelf.pool.release(shared.pages[::-1].copy(), 0.0)
    shelf.sessions.expire(TTL_S)
    assert (shelf.pool.num_cold, shelf.pool.num_kept) == (2, 0)
    shelf.check()


def test_an_ended_session_is_not_filled_by_a_turn_that_still_runs() -> None:
    shelf = Shelf()
    session = shelf.sessions.begin("s", "tenant", "s", 0.0)
    assert shelf.sessions.close("s") and not shelf.sessions.close("s")
    again = shelf.sessions.begin("s", "tenant", "s", 1.0)
    assert again is not session
    context = shelf.compute(*ids(0, 2))
    shelf.sessions.keep(session, context)
    shelf.sessions.end(session, 2.0)
    assert shelf.pool.claims().sum() == 0
    shelf.sessions.end(again, 2.0)
    shelf.pool.release(context.pages[::-1].copy(), 0.0)
    shelf.check()


def test_contexts_of_another_salt_are_not_found() -> None:
    shelf = Shelf()
    session = shelf.sessions.begin("s", "tenant", "s", 0.0)
    shelf.sessions.keep(session, shelf.compute(*ids(0, 2), salt="a"))
    array = np.array(ids(0, 2), np.int32)
    assert shelf.sessions.find(session, array, 8, "b") is None
    assert shelf.sessions.find(session, array, 8, "a") is not None


def test_at_the_limit_the_session_unused_for_longest_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinpath.kv.sessions.MAX_SESSIONS", 2)
    shelf = Shelf()
    for index, key in enumerate(("a", "b", "c")):
        shelf.turn(key, *ids(1000 * index, 1), now_s=float(index))
    assert shelf.sessions.get("a") is None and len(shelf.sessions) == 2


def test_many_turns_do_not_grow_the_books() -> None:
    shelf = Shelf()
    for turn in range(1000):
        shelf.turn("s", *ids(0, 1), now_s=float(turn % 7))
    assert len(shelf.sessions._fading) < 100


@pytest.mark.parametrize(
    ("tokens", "num_tokens", "expected"),
    [((0, 1, 2, 3, 4, 5, 6, 7), 8, 2), ((0, 1, 2, 3, 4, 5, 6, 7), 7, 1), ((0, 1, 2, 9), 4, 0), ((), 0, 0)],
)
def test_common_pages_are_whole_pages(tokens: tuple[int, ...], num_tokens: int, expected: int) -> None:
    chain = Shelf().compute(*range(8))
    assert chain.num_common_pages(np.array(tokens, np.int32), num_tokens) == expected


def test_a_cut_chain_is_as_long_as_its_pages() -> None:
    chain = Shelf().compute(*range(12))
    dropped: Int32s = chain.cut(1)
    assert len(dropped) == 2 and chain.num_common_pages(np.arange(12, dtype=np.int32), 12) == 1


def test_num_pages_counts_shared_pages_once() -> None:
    session = Session("k", "t", "n", 0.0, 0.0)
    assert session.num_pages == 0
