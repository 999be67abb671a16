"""Slabs follow the pages that lanes draw; what a lane holds beyond its own is lent."""

from __future__ import annotations

import pytest

from twinpath.kv import SlabLedger


def ledger() -> SlabLedger[str]:
    return SlabLedger(80, 10, {"fast": 0.5, "flex": 0.5})


def test_a_lane_holds_as_many_slabs_as_its_pages_need() -> None:
    slabs = ledger()
    assert slabs.num_slabs == 8 and slabs.home == {"fast": 4, "flex": 4}
    slabs.draw("flex", 41)
    assert (slabs.held("flex"), slabs.lent_to("flex"), slabs.held("fast")) == (5, 1, 0)


def test_slabs_are_lent_both_ways_and_every_move_counts() -> None:
    slabs = ledger()
    slabs.draw("flex", 60)
    assert (slabs.lent_to("flex"), slabs.num_moves) == (2, 2)
    slabs.give_back("flex", 40)
    assert (slabs.lent_to("flex"), slabs.num_moves) == (0, 4)
    for _ in range(51):
        slabs.draw("fast")
    assert (slabs.lent_to("fast"), slabs.num_moves) == (2, 6)


def test_giving_back_more_than_was_drawn_is_an_error() -> None:
    slabs = ledger()
    slabs.draw("fast", 1)
    with pytest.raises(AssertionError, match="more than it drew"):
        slabs.give_back("fast", 2)
