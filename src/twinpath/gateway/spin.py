"""Keeps an event loop awake for a while: one that sleeps is woken late, and runs cold."""

from __future__ import annotations

import asyncio

from twinpath.contracts import Clock


class Spinner:
    """`touch` keeps the running loop turning without sleep for `spin_s` seconds; 0: never."""

    def __init__(self, spin_s: float, clock: Clock) -> None:
        self._spin_s = spin_s
        self._clock = clock
        self._end_s = 0.0
        self._is_turning = False

    def touch(self) -> None:
        if not self._spin_s:
            return
        self._end_s = self._clock() + self._spin_s
        if not self._is_turning:
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if self._clock() < self._end_s:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._is_turning = False
