"""The bounded store behind `previous_response_id`."""

from __future__ import annotations

import pytest

from twinpath.api.responses_api.schemas import InputItem
from twinpath.api.responses_api.store import ResponseStore
from twinpath.errors import InvalidRequest, RequestError

ITEM = InputItem(type="message", role="user", content="hi")


def test_what_was_put_is_found_by_its_owner_alone() -> None:
    store = ResponseStore(10_000)
    store.put("alice", "r1", b"{}", [ITEM])
    assert store.conversation("alice", "r1") == [ITEM]
    assert store.body("alice", "r1") == b"{}"
    with pytest.raises(InvalidRequest) as refused:
        store.conversation("bob", "r1")
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(RequestError):
        store.body("bob", "r1")


def test_the_least_recently_used_go_first() -> None:
    store = ResponseStore(3 * 1000)
    for name in ("r1", "r2"):
        store.put("", name, b"x" * 1200, [])
    store.conversation("", "r1")
    store.put("", "r3", b"x" * 1200, [])
    assert store.conversation("", "r1") == []
    with pytest.raises(InvalidRequest):
        store.conversation("", "r2")
    assert len(store) == 2


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(100)
    store.put("", "small", b"x", [])
    store.put("", "large", b"x" * 200, [])
    assert len(store) == 0
    ResponseStore(0).put("", "r", b"x", [])


def test_deleted_bytes_are_free_again() -> None:
    store = ResponseStore(2000)
    for name in ("r1", "r2"):
        store.put("", name, b"x" * 900, [])
    store.delete("", "r1")
    store.put("", "r3", b"x" * 900, [])
    assert len(store) == 2
    with pytest.raises(RequestError):
        store.delete("", "r1")
