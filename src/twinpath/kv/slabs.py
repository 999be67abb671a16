"""How much of one pool each lane has drawn, in slabs that move to the lane that needs them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

L = TypeVar("L", bound=Hashable)


class SlabLedger(Generic[L]):
    """A lane holds as many slabs as the pages it has drawn need. `home` are the slabs that are its own: what it holds
    beyond is lent by the others, and may be asked back. Pages need no neighbours, so a slab moves by being counted.
    """

    def __init__(self, num_pages: int, slab_pages: int, shares: Mapping[L, float]) -> None:
        """`shares`: of the pool, per lane, 1 in all."""
        assert slab_pages > 0
        self.slab_pages = slab_pages
        self.num_slabs = max(-(-num_pages // slab_pages), 1)
        self.home = {lane: round(self.num_slabs * share) for lane, share in shares.items()}
        self.num_drawn: dict[L, int] = dict.fromkeys(shares, 0)
        #: Slabs that a lane has borrowed so far, and given back.
        self.num_moves = 0

    def held(self, lane: L) -> int:
        """Slabs."""
        return -(-self.num_drawn[lane] // self.slab_pages)

    def lent_to(self, lane: L) -> int:
        """Slabs that it holds beyond its own."""
        return max(self.held(lane) - self.home[lane], 0)

    def draw(self, lane: L, num_pages: int = 1) -> None:
        drawn = self.num_drawn[lane]
        self.num_drawn[lane] = drawn + num_pages
        before, after = -(-drawn // self.slab_pages), -(-(drawn + num_pages) // self.slab_pages)
        if before != after:
            home = self.home[lane]
            self.num_moves += abs(max(after, home) - max(before, home))

    def give_back(self, lane: L, num_pages: int) -> None:
        self.draw(lane, -num_pages)
        assert self.num_drawn[lane] >= 0, "a lane gave back more than it drew"
