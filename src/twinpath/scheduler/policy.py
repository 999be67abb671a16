"""Who goes first: the part of scheduling that is opinion, apart from the bookkeeping that must always hold."""

from __future__ import annotations

from typing import Protocol

from twinpath.scheduler.sequence import Sequence

#: A sequence with at most this many rows to run is about to sample: it is served like a decode row.
_SHORT_ROWS = 8


class Policy(Protocol):
    """Orders running sequences within a step, and names the one that gives way when pages run out."""

    def order(self, running: list[Sequence]) -> list[Sequence]:
        """`running` (oldest first) in the order in which rows are granted; those that may need pages oldest first."""
        ...

    def victim(self, running: list[Sequence]) -> Sequence:
        """The sequence to preempt; the youngest, so that the oldest always gets on."""
        ...


class FirstComeFirstServed:
    """Decode rows before prefill rows, each by arrival."""

    def order(self, running: list[Sequence]) -> list[Sequence]:
        long = [sequence for sequence in running if sequence.num_remaining > _SHORT_ROWS]
        return [sequence for sequence in running if sequence.num_remaining <= _SHORT_ROWS] + long

    def victim(self, running: list[Sequence]) -> Sequence:
        return running[-1]
