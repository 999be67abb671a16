"""Paged prefill attention against its plain twin, and against itself when the prompt is cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from twinpath.kernels.prefill_attention import reference
from twinpath.kernels.prefill_attention.launch import attend
from twinpath.kernels.prefill_attention.spec import AttentionTiling, KeyParts, rows_per_tile
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows

SHAPES = {
    "shared by 4": HeadShape(num_heads=8, num_kv_heads=2, head_dim=16, page_size=16, norm_eps=1e-6),
    "shared by 3": HeadShape(num_heads=3, num_kv_heads=1, head_dim=32, page_size=32, norm_eps=1e-6),
    "odd size": HeadShape(num_heads=2, num_kv_heads=2, head_dim=24, page_size=16, norm_eps=1e-6),
}
TILING = AttentionTiling(lanes=32, keys=32, warps=4, stages=2)
NUM_PAGES = 24


class Scene:
    """Pages full of keys and values, NaN where nobody may look, and queries for every position of each sequence."""

    def __init__(self, shape: HeadShape, lengths: list[int], device: torch.device, dtype: torch.dtype) -> None:
        rng = np.random.default_rng(0)
        self.shape, self.lengths, self.device = shape, lengths, device
        size = (NUM_PAGES, shape.num_kv_heads, shape.page_size, shape.head_dim)
        self.pages = tuple(torch.full(size, float("nan"), dtype=dtype, device=device) for _ in range(2))
        order = rng.permutation(NUM_PAGES)
        self.tables = torch.zeros(len(lengths), NUM_PAGES, dtype=torch.int32, device=device)
        used = 0
        for slot, length in enumerate(lengths):
            num = -(-length // shape.page_size)
            table = order[used : used + num]
            used += num
            self.tables[slot, :num] = torch.from_numpy(table.astype(np.int32))
            for part in self.pages:
                values = torch.from_numpy(rng.standard_normal((length, *size[1:2], size[3]))).to(device, dtype)
                for position in range(length):
                    part[table[position // shape.page_size], :, position % shape.page_size] = values[position]
        width = shape.num_heads * shape.head_dim
        self.q = [torch.from_numpy(rng.standard_normal((n, width))).to(device, dtype) for n in lengths]

    def attend(
        self,
        parts: list[tuple[int, int, int]],
        window: int | None,
        plain: bool = False,
        tiling: AttentionTiling = TILING,
        keys: KeyParts | None = None,
    ) -> list[Tensor]:
        """`parts`: (sequence, begin, end) in the order of their rows; returns each part's rows."""
        tile_rows = rows_per_tile(self.shape, tiling)
        tiles, row = [], 0
        for slot, begin, end in parts:
            for start in range(begin, end, tile_rows):
                num = min(tile_rows, end - start)
                tiles.append((row, num, start, slot))
                row += num
        tiles += [(0, 0, 0, 0)] * ((24 if keys else len(tiles) + 1) - len(tiles))  # padding
        nothing = torch.zeros(0, dtype=torch.int32, device=self.device)
        rows = Rows(
            nothing, nothing, nothing, torch.tensor(tiles, dtype=torch.int32, device=self.device), self.tables, nothing
        )
        q = torch.cat([self.q[slot][begin:end] for slot, begin, end in parts])
        out = torch.full_like(q, float("nan"))
        run = reference.attend if plain else attend
        run(q, rows, (self.pages[0], self.pages[1]), out, self.shape.head_dim**-0.5, window, self.shape, tiling, keys)
        return list(out.split([end - begin for _, begin, end in parts]))


@pytest.mark.parametrize("window", [None, 1, 20, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_those_of_the_plain_twin(shape: str, window: int | None, device: torch.device) -> None:
    scene = Scene(SHAPES[shape], [70, 1, 33], device, torch.float32)
    parts = [(1, 0, 1), (0, 13, 70), (2, 0, 33)]
    for got, right in zip(scene.attend(parts, window), scene.attend(parts, window, plain=True), strict=True):
        torch.testing.assert_close(got, right, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 40])
def test_cutting_a_prompt_changes_no_bit(window: int | None, device: torch.device) -> None:
    scene = Scene(SHAPES["shared by 4"], [100, 9], device, torch.bfloat16)
    (whole,) = scene.attend([(0, 0, 100)], window)
    assert torch.isfinite(whole).all()
    for cuts in ([0, 1, 2, 37, 100], [0, 64, 96, 100]):
        parts = [(0, begin, end) for begin, end in pairwise(cuts)]
        pieces = [scene.attend([part, (1, 0, 9)], window)[0] for part in parts]
        assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("start", [0, 2048, 6144])
def test_the_library_agrees_with_the_kernel(start: int) -> None:
    """A chunk of 2,048 rows, its context in one to three parts: to what 16 bits keep."""
    from twinpath.kernels.prefill_attention.library import LibraryAttention

    device, length = torch.device("cuda"), 2048
    shape = HeadShape(num_heads=8, num_kv_heads=2, head_dim=64, page_size=16, norm_eps=1e-6)
    num_pages = (start + length) // 16
    pages = tuple(torch.randn(num_pages, 2, 16, 64, device=device, dtype=torch.bfloat16) for _ in range(2))
    tables = torch.randperm(num_pages, device=device).int()[None]
    q = 3 * torch.randn(length, 8 * 64, device=device, dtype=torch.bfloat16)
    step = rows_per_tile(shape, TILING)
    tiles = torch.tensor([(r, step, start + r, 0) for r in range(0, length, step)], dtype=torch.int32, device=device)
    rows = Rows(tables, tables, tables, tiles, tables, tables)
    right, got = torch.empty_like(q), torch.full_like(q, float("nan"))
    attend(q, rows, (pages[0], pages[1]), right, 0.125, None, shape, TILING)
    library = LibraryAttention(shape, 8192, length, torch.bfloat16, device)
    library.warm_up(0.125)
    assert library.fits(start, length)
    library.attend(q, tables[0], start, (pages[0], pages[1]), got, 0.125)
    error = (got.float() - right.float()).norm() / right.float().norm()
    assert float(error) < 1e-2


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("shape", ["shared by 4", "odd size"])
def test_a_context_shared_among_programs(shape: str, window: int | None, device: torch.device) -> None:
    """Parts of a long context are joined, a short one is left whole, and counters are zero again."""
    scene = Scene(SHAPES[shape], [150, 1, 33], device, torch.float32)
    tiling = replace(TILING, programs=64, least_keys=32, shared=(32, 2))
    keys = KeyParts.allocate(scene.shape, tiling, 24, device)
    keys.sums.fill_(float("nan"))
    parts = [(1, 0, 1), (0, 143, 150), (2, 20, 33)]
    right = scene.attend(parts, window, plain=True)
    for _ in range(2):
        for got, want in zip(scene.attend(parts, window, tiling=tiling, keys=keys), right, strict=True):
            torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)
    assert not keys.arrivals.any()
    assert torch.isfinite(keys.sums).any()
