"""Ranks of a model as threads of one process, joined by gloo; they run in turn, so they may share an interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

from torch import Tensor
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

from twinpath.engine.cuda.collectives import LibraryCollective, ProcessGroup
from twinpath.engine.cuda.shards import Shard

T = TypeVar("T")
#: Far beyond any test here.
TIMEOUT_S = 60.0


class _Yielding(LibraryCollective):
    """Lets others run while it waits for them."""

    def __init__(self, group: ProcessGroup, shard: Shard, turn: threading.Lock) -> None:
        super().__init__(group, shard, fixed_order=True)
        self._turn = turn

    def _gather(self, x: Tensor) -> list[Tensor]:
        self._turn.release()
        try:
            return super()._gather(x)
        finally:
            self._turn.acquire()


def run_ranks(world: int, work: Callable[[LibraryCollective], T]) -> list[T]:
    """What `work` gives on each rank."""
    store, turn = HashStore(), threading.Lock()

    def run(rank: int) -> T:
        group = ProcessGroupGloo(store, rank, world, timedelta(seconds=TIMEOUT_S))
        with turn:
            return work(_Yielding(group, Shard(rank, world), turn))

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(run, range(world)))
