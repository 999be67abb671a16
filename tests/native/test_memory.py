"""Where weights lie: a step streams all of them, from 2 MB pages where the system has some."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from engine.random_models import SPECS, random_weights
from twinpath.native.library import load_library
from twinpath.native.model import NativeModel, NativeOptions

ROLLUP = Path("/proc/self/smaps_rollup")
HUGE_PAGE_BYTES = 2 << 20


def huge_bytes() -> int:
    lines = ROLLUP.read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


def gives_huge_pages() -> bool:
    """Whether the system has one now for whoever asks."""
    if not ROLLUP.exists() or not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    before = huge_bytes()
    with mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory[:] = b"1" * len(memory)
        return huge_bytes() > before


def test_matrices_smaller_than_a_huge_page_share_some() -> None:
    if not gives_huge_pages():
        pytest.skip("this system gives no huge pages")
    spec = SPECS["llama"]
    weights = random_weights(spec)
    assert sum(np.asarray(tensor.data).nbytes for tensor in weights.values()) < HUGE_PAGE_BYTES
    before = huge_bytes()
    options = NativeOptions(threads=1, page_size=16, num_pages=4, max_rows=8, max_position=64)
    model = NativeModel(load_library(), spec, weights, options)
    found = huge_bytes() - before
    model.close()
    assert found >= HUGE_PAGE_BYTES
