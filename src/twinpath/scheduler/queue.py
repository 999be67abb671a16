"""The waiting sequences in the order of a policy."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from twinpath.scheduler.policy import Policy
from twinpath.scheduler.sequence import Sequence

#: Keys that change with time are this old at most.
_REFRESH_S = 0.02

_Entry = tuple[float, int, Sequence]


class WaitingQueue:
    """Sequences by (policy key, arrival). Static keys are computed once, dynamic ones anew every 20 ms at most."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: list[_Entry] = []
        self._keys: dict[int, float] = {}
        self._refreshed_s = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, Sequence) and sequence.order in self._keys

    def add(self, sequence: Sequence, now_s: float) -> None:
        key = self._keys[sequence.order] = self._policy.key(sequence, now_s)
        insort(self._entries, (key, sequence.order, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Raises: KeyError when it is not there."""
        key = self._keys.pop(sequence.order)
        index = bisect_left(self._entries, (key, sequence.order), key=lambda entry: entry[:2])
        del self._entries[index]

    def first(self, now_s: float) -> Sequence:
        """Who is to be served first; the queue is not empty."""
        return next(self.ordered(now_s))

    def ordered(self, now_s: float) -> Iterator[Sequence]:
        """First to serve first. The queue must not change while iterating."""
        if self._policy.dynamic and not 0 <= now_s - self._refreshed_s < _REFRESH_S:
            self._refresh(now_s)
        return (sequence for _, _, sequence in self._entries)

    def _refresh(self, now_s: float) -> None:
        self._refreshed_s = now_s
        self._entries = sorted((self._policy.key(s, now_s), order, s) for _, order, s in self._entries)
        self._keys = {order: key for key, order, _ in self._entries}
