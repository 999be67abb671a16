"""An event loop that is kept awake turns, and stops turning."""

from __future__ import annotations

import asyncio

import pytest

from twinpath.gateway.spin import Spinner


class Clock:
    """Goes a second a look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.mark.parametrize("spin_s", [0.0, 5.0])
async def test_it_turns_for_its_time_only(spin_s: float) -> None:
    clock = Clock()
    spinner = Spinner(spin_s, clock)
    for _ in range(2):
        before_s = clock.now_s
        spinner.touch()
        spinner.touch()  # While it turns, this only lengthens it.
        for _ in range(20):
            await asyncio.sleep(0)
        # One look each to set the end; then until it has passed.
        assert clock.now_s - before_s == (1.0 + 1.0 + spin_s if spin_s else 0.0)
