"""Work that would hold up the event loop goes to a thread; small work stays, because a hop costs more than it saves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: Characters, token ids or scores handled in place: about a millisecond's worth. No stream may wait for more than 5.
INLINE_SIZE = 4096


class Offload:
    """Two worker threads of one app; `close` ends them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="offload")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, whose cost grows with `size`."""
        if size <= INLINE_SIZE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
