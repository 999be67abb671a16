"""Decisions about memory: who gets pages, what is taken back for them, and who gives way."""

from __future__ import annotations

from twinpath.kv import PagePool, PrefixCache
from twinpath.scheduler.chunk import Row
from twinpath.scheduler.policy import Policy
from twinpath.scheduler.residency import Residency
from twinpath.scheduler.sequence import Sequence
from twinpath.types import EngineInfo, Int32s


class Memory:
    """One pool of pages under all running sequences; the bookkeeping is in `Residency`, the choices are here."""

    def __init__(self, info: EngineInfo, window_tokens: int, enable_prefix_caching: bool, policy: Policy) -> None:
        self.residency = Residency(info, window_tokens, enable_prefix_caching)
        self._policy = policy

    @property
    def pool(self) -> PagePool:
        return self.residency.pool

    @property
    def prefix(self) -> PrefixCache:
        return self.residency.prefix

    @property
    def block_tables(self) -> Int32s:
        return self.residency.block_tables

    def admit(self, sequence: Sequence, num_running: int) -> bool:
        """A slot and pages for all known tokens of a waiting sequence, or nothing.

        One spare page stays for each running sequence: else the newcomer is preempted at their next page border.
        """
        return self.residency.admit(sequence, num_spare_pages=num_running)

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Pages for the first `num_tokens` positions of a running sequence; False when they run out on the way."""
        while self.residency.needs_page(sequence, num_tokens):
            if not self.residency.extend(sequence):
                return False
        return True

    def extend_ahead(self, rows: list[Row], num_tokens: int) -> bool:
        """Pages for `num_tokens` more positions of every row, or nothing."""
        missing = [self.residency.num_missing_pages(row.sequence, row.start + num_tokens) for row in rows]
        if sum(missing) > self.pool.num_available:
            return False
        for row, num_pages in zip(rows, missing, strict=True):
            for _ in range(num_pages):
                self.residency.extend(row.sequence)
        return True

    def victim(self, running: list[Sequence]) -> Sequence:
        """Who of `running` (oldest first, not empty) gives way when pages run out."""
        return self._policy.victim(running)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache of everything no running sequence uses, and start its statistics again."""
        self.pool.forget_idle()
        self.prefix.num_queried_tokens = self.prefix.num_hit_tokens = 0
