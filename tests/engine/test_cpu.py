"""What the CPU engine does beyond the contract."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from engine.random_models import SPECS, random_weights
from twinpath.engine.cpu import CpuEngine, CpuOptions


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="no other system can be asked")
def test_an_idle_engine_gets_memory_for_the_pages_that_come_next() -> None:
    spec = SPECS["llama"]
    options = CpuOptions(threads=1, page_size=16, num_pages=16_384, max_slots=2, max_step_tokens=64)
    engine = CpuEngine(spec, random_weights(spec, 0), options)
    try:
        before = _resident_bytes()
        rounds = 0
        while engine.prepare():
            rounds += 1
        grown = _resident_bytes() - before
        assert not engine.prepare()
    finally:
        engine.close()
    assert rounds > 3, "no call may hold up the loop for all of it"
    # Of a pool of 96 MB, which might as well be most of the machine.
    assert 30 * 2**20 <= grown <= 40 * 2**20
