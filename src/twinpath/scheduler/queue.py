"""The waiting sequences in the order of a policy."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from twinpath.scheduler.policy import Policy
from twinpath.scheduler.sequence import Sequence
from twinpath.scheduler.waits import WaitHistory

#: Keys that change with time are those of the last whole tick: they do not depend on how often somebody looks.
_TICK_S = 0.02

_Entry = tuple[float, int, Sequence]


class WaitingQueue:
    """Sequences by (policy key, arrival). Static keys are computed once, dynamic ones once in 20 ms."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: list[_Entry] = []
        self._keys: dict[int, float] = {}
        self._tick = 0
        #: Of all that waited here for the first row of their prefill.
        self.waits = WaitHistory()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, Sequence) and sequence.order in self._keys

    def add(self, sequence: Sequence, now_s: float) -> None:
        self._refresh(now_s)
        key = self._keys[sequence.order] = self._policy.key(sequence, int(now_s // _TICK_S) * _TICK_S)
        insort(self._entries, (key, sequence.order, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Raises: KeyError when it is not there."""
        key = self._keys.pop(sequence.order)
        if self._entries[0][2] is sequence:  # As a rule the first is served.
            del self._entries[0]
            return
        index = bisect_left(self._entries, (key, sequence.order), key=lambda entry: entry[:2])
        del self._entries[index]

    def snapshot(self) -> list[Sequence]:
        """Those that wait, in the order of the last look; for any thread."""
        return [sequence for _, _, sequence in list(self._entries)]

    def first(self, now_s: float) -> Sequence:
        """Who is to be served first; the queue is not empty."""
        self._refresh(now_s)
        return self._entries[0][2]

    def ordered(self, now_s: float) -> Iterator[Sequence]:
        """First to serve first. The queue must not change while iterating."""
        self._refresh(now_s)
        return (sequence for _, _, sequence in self._entries)

    def _refresh(self, now_s: float) -> None:
        if self._policy.dynamic and (tick := int(now_s // _TICK_S)) != self._tick:
            self._tick = tick
            self._entries = sorted((self._policy.key(s, tick * _TICK_S), order, s) for _, order, s in self._entries)
            self._keys = {order: key for key, order, _ in self._entries}
