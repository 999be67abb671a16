"""Working memory of paused plans: named by a residual, taken back when nobody goes on with it."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from twinpath.engine.cpu_slices import CpuSlices
from twinpath.errors import EngineError
from twinpath.native.model import NativeModel, NativeSlice


class Memory:
    """Counts what is open."""

    def __init__(self) -> None:
        self.open: list[NativeSlice] = []
        self.num_opened = 0

    def open_slice(self) -> NativeSlice:
        self.num_opened += 1
        self.open.append(NativeSlice(self.num_opened))
        return self.open[-1]

    def close_slice(self, piece: NativeSlice) -> None:
        self.open.remove(piece)


def test_a_paused_plan_finds_its_own_and_a_done_one_leaves_it_to_the_next() -> None:
    memory = Memory()
    slices = CpuSlices(cast(NativeModel, memory))
    a, b = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)
    first, second = slices.take(a, False), slices.take(b, False)
    slices.keep(a, first)
    slices.keep(b, second)
    assert slices.take(a, True) is first
    with pytest.raises(EngineError, match="not paused"):
        slices.take(a, True)
    slices.give_back(first)
    assert slices.take(np.zeros((2, 4), np.float32), False) is first and memory.num_opened == 2
    slices.give_back(first)
    slices.close()
    assert memory.open == []


def test_a_plan_that_begins_again_gives_back_where_it_was() -> None:
    memory = Memory()
    slices = CpuSlices(cast(NativeModel, memory))
    residual = np.zeros((2, 4), np.float32)
    slices.keep(residual, slices.take(residual, False))
    slices.keep(residual, slices.take(residual, False))
    slices.close()
    assert memory.num_opened == 1 and memory.open == []


def test_plans_whose_requests_left_do_not_pile_up() -> None:
    memory = Memory()
    slices = CpuSlices(cast(NativeModel, memory))
    dropped = [np.zeros((2, 4), np.float32) for _ in range(20)]
    for residual in dropped:
        slices.keep(residual, slices.take(residual, False))
    assert memory.num_opened == 4
    assert slices.take(dropped[-1], True) in memory.open
    with pytest.raises(EngineError):
        slices.take(dropped[0], True)
