"""Runs the product; allocates nothing and may be captured."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from twinpath.kernels.fixed_linear.kernel import fixed_linear_kernel
from twinpath.kernels.fixed_linear.spec import tile_for


def linear(x: Tensor, w: Tensor, out: Tensor) -> None:
    """out = x @ w.T, each row's bits whatever the others are and however many.

    Shapes: x [M, K], w [N, K] contiguous, out [M, N] of x's type or float32; last axes contiguous.
    """
    num_rows, summed = x.shape
    tile = tile_for(num_rows, x.dtype == torch.float32)
    grid = (triton.cdiv(num_rows, tile.rows), triton.cdiv(len(w), tile.outputs))
    fixed_linear_kernel[grid](
        x, w, out, num_rows, len(w), summed, x.stride(0), out.stride(0),
        TILE_M=tile.rows, TILE_N=tile.outputs, TILE_K=tile.summed, EVEN_K=summed % tile.summed == 0,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
