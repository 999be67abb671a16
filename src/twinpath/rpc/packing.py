"""Tokens into messages: the first at once, later ones together with those that came meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")
#: A client that does not read stops its generation's reader here, not the memory of the server.
MAX_HELD = 1024


class Packer(Generic[T]):
    """Takes items from a generation and hands them in batches to `write`, which may be slow.

    One task produces, one writes: later items wait for a write in progress, and up to `wait_s` beside.
    """

    def __init__(self, write: Callable[[list[T]], Awaitable[None]], *, wait_s: float = 0.0) -> None:
        self._write = write
        self._wait_s = wait_s
        self._held: list[T] = []
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._end = asyncio.Event()

    async def put(self, item: T) -> None:
        """Hand an item over; waits only while the reader is far behind."""
        while len(self._held) >= MAX_HELD:
            self._room.clear()
            await self._room.wait()
        self._held.append(item)
        self._some.set()

    def close(self) -> None:
        """No more items: `run` returns when all are written."""
        self._end.set()
        self._some.set()

    async def run(self) -> None:
        """Write batches until closed."""
        while not (self._end.is_set() and not self._held):
            await self._some.wait()
            self._some.clear()
            batch, self._held = self._held, []
            self._room.set()
            if batch:
                await self._write(batch)
            if self._wait_s:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_s):
                        await self._end.wait()
