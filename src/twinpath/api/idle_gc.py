"""Garbage collection at quiet moments: a full collection while busy would stop every stream for 100 ms and more."""

from __future__ import annotations

import gc

#: Container objects made and not freed since the last collection. Refcounts free nearly all; what is left are cycles.
#: Looking at 10,000 takes about a millisecond.
IDLE_OBJECTS = 1_000
BUSY_OBJECTS = 10_000
#: The same in a breath: a fifth of a millisecond, of the four and more that an engine takes for a prompt.
BREATH_OBJECTS = 2_000
#: Young collections until those who survived one are looked at again: most were in flight, and few are left.
MIDDLE_AFTER_YOUNG_RUNS = 10
#: Ticks without a request until the old generation is looked at too.
FULL_AFTER_TICKS = 10
#: Young collections until it is looked at even so: a server that is never idle must not keep its cycles for ever.
FULL_AFTER_YOUNG_RUNS = 200


class IdleCollector:
    """Collects young objects when nothing runs (or when very many are waiting), everything after a longer pause.

    What lives at `start` (modules, the app) is frozen: no later collection looks at it. The collector is the process's,
    so `stop` puts it back.
    """

    def __init__(self) -> None:
        self._num_idle_ticks = 0
        self._num_young_runs = 0

    def start(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()

    def stop(self) -> None:
        gc.enable()
        gc.unfreeze()

    def tick(self, *, idle: bool) -> None:
        """Called about ten times a second."""
        self._num_idle_ticks = self._num_idle_ticks + 1 if idle else 0
        rested = self._num_idle_ticks >= FULL_AFTER_TICKS and self._num_young_runs > 0
        self._collect(IDLE_OBJECTS if idle else BUSY_OBJECTS, everything=rested)

    def breathe(self) -> None:
        """Called when a prompt has just gone to an engine that works beside this processor: nothing is due before its
        first token, while at any other moment somebody waits for this process."""
        self._collect(BREATH_OBJECTS)

    def _collect(self, limit: int, *, everything: bool = False) -> None:
        if everything or self._num_young_runs >= FULL_AFTER_YOUNG_RUNS:
            gc.collect()
            self._num_young_runs = 0
        elif gc.get_count()[0] > limit:
            self._num_young_runs += 1
            gc.collect(1 if self._num_young_runs % MIDDLE_AFTER_YOUNG_RUNS == 0 else 0)
