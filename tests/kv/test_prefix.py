"""A prefix is found by all of its tokens and its salt, and forgotten with its page."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinpath.kv import PagePool, PrefixCache, PrefixKeys
from twinpath.types import Int32s

SIZE = 4


def tokens(*values: int) -> Int32s:
    return np.array(values, np.int32)


def keys_of(values: Int32s, salt: str = "") -> list[bytes]:
    return PrefixKeys(SIZE, salt).extend(values, len(values))


def filled(values: Int32s, num_pages: int = 8, salt: str = "") -> tuple[PagePool, PrefixCache, list[int]]:
    pool = PagePool(num_pages)
    cache = PrefixCache(pool)
    pages = []
    for key in keys_of(values, salt):
        pages.append(pool.allocate())
        cache.insert([key], pages[-1:])
    return pool, cache, pages


@given(
    first=st.lists(st.integers(0, 3), max_size=24),
    second=st.lists(st.integers(0, 3), max_size=24),
    salts=st.tuples(st.sampled_from(["", "a"]), st.sampled_from(["", "a"])),
)
@settings(deadline=None)
def test_find_returns_exactly_the_shared_full_pages(
    first: list[int], second: list[int], salts: tuple[str, str]
) -> None:
    _, cache, pages = filled(tokens(*first), salt=salts[0])
    num_shared = 0
    while (
        salts[0] == salts[1]
        and num_shared + SIZE <= min(len(first), len(second))
        and first[num_shared : num_shared + SIZE] == second[num_shared : num_shared + SIZE]
    ):
        num_shared += SIZE
    assert cache.find(keys_of(tokens(*second), salts[1])) == pages[: num_shared // SIZE]
    cache.check_integrity()


def test_keys_are_the_same_whatever_the_steps_in_which_tokens_become_known() -> None:
    values = tokens(*range(22))
    chain = PrefixKeys(SIZE, "salt")
    for known in (3, 4, 11, 22):
        chain.extend(values, known)
    assert chain.keys == keys_of(values, "salt")
    assert len(chain.keys) == 5


def test_same_page_content_after_another_beginning_is_another_prefix() -> None:
    _, cache, pages = filled(tokens(1, 1, 1, 1, 2, 2, 2, 2))
    assert cache.find(keys_of(tokens(2, 2, 2, 2))) == []
    assert cache.find(keys_of(tokens(1, 1, 1, 1, 3, 3, 3, 3))) == pages[:1]


def test_second_page_with_a_known_key_stays_its_owners() -> None:
    values = tokens(1, 2, 3, 4)
    pool, cache, pages = filled(values)
    twin = pool.allocate()
    cache.insert(keys_of(values)[:1], [twin])
    assert cache.find(keys_of(values)) == pages
    pool.release(tokens(twin))
    assert pool.num_idle == 0
    cache.check_integrity()


def test_taken_back_page_is_forgotten() -> None:
    values = tokens(*range(8))
    pool, cache, pages = filled(values, num_pages=2)
    pool.release(tokens(*reversed(pages)))
    assert cache.find(keys_of(values)) == pages
    pool.evict_oldest()
    assert cache.find(keys_of(values)) == pages[:1]
    assert pool.allocate() == pages[1]
    cache.check_integrity()


def test_find_can_begin_behind_pages_that_are_known() -> None:
    values = tokens(*range(12))
    _, cache, pages = filled(values)
    assert cache.find(keys_of(values), 2) == pages[2:]


def test_withdrawn_page_is_free_when_it_is_released() -> None:
    values = tokens(*range(8))
    pool, cache, pages = filled(values)
    cache.withdraw(pages[1])
    cache.check_integrity()
    assert cache.find(keys_of(values)) == pages[:1]
    pool.release(tokens(*reversed(pages)))
    assert pool.num_cold == 1


def test_page_that_somebody_else_found_is_not_withdrawn() -> None:
    values = tokens(*range(8))
    pool, cache, pages = filled(values)
    pool.retain(tokens(pages[1]))
    cache.withdraw(pages[1])
    assert cache.find(keys_of(values)) == pages


def test_adopted_keys_go_on_as_if_they_had_been_computed() -> None:
    values = tokens(*range(16))
    chain = PrefixKeys(SIZE, "salt")
    chain.adopt(keys_of(values, "salt")[:2], 0)
    assert chain.extend(values, 16) == keys_of(values, "salt")


def test_behind_a_shared_template_every_salt_is_alone() -> None:
    values = tokens(*range(16))
    template = keys_of(values, "all")[:2]
    chains = {}
    for salt in ("a", "b"):
        chain = PrefixKeys(SIZE, salt)
        chain.adopt(list(template), 2)
        chains[salt] = chain.extend(values, 16)
        # A later sequence that starts with the template only goes on in the same way.
        again = PrefixKeys(SIZE, salt)
        again.adopt(chains[salt][:1], chain.num_foreign)
        assert again.extend(values, 16)[1] not in keys_of(values, "all")
    assert chains["a"][:2] == chains["b"][:2] == template
    assert not set(chains["a"][2:]) & {*chains["b"], *keys_of(values, "a"), *keys_of(values, "all")}
