"""residual += W x + bias, and what the next norm needs of the sum, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from twinpath.kernels.tile import await_previous_kernel, row_tile_product
from twinpath.kernels.tiling import Tiling, fit_tiling, padded_batch


@triton.jit(do_not_specialize=["num_batch"])
def _linear_residual(
    x_ptr,
    w_ptr,
    bias_ptr,
    gain_ptr,
    residual_ptr,
    scaled_ptr,
    squares_ptr,
    num_batch,
    N: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    B_MAX: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * R
    rows = first + tl.arange(0, R)
    batch = tl.arange(0, B)
    gain = tl.load(gain_ptr + rows)
    await_previous_kernel(PDL)
    cells = batch[None, :] * N + rows[:, None]
    inside = batch[None, :] < num_batch
    residual = tl.load(residual_ptr + cells, mask=inside, other=0.0)
    y = row_tile_product(w_ptr, rows, x_ptr, num_batch, K, R, B, BLOCK_K, SLICES, STAGES)
    if HAS_BIAS:
        y = y + tl.load(bias_ptr + rows)[:, None]
    residual = residual + y
    tl.store(residual_ptr + cells, residual, mask=inside)
    tl.store(scaled_ptr + cells, (residual * gain[:, None]).to(scaled_ptr.dtype.element_ty), mask=inside)
    squares = tl.sum(residual * residual, axis=0)
    tl.store(squares_ptr + tl.program_id(0) * B_MAX + batch, squares, mask=batch < num_batch)


def linear_residual(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gain: torch.Tensor,
    residual: torch.Tensor,
    scaled: torch.Tensor,
    squares: torch.Tensor,
    *,
    tiling: Tiling,
    pdl: bool = False,
) -> None:
    """residual[b] += weight @ x[b] + bias; scaled = residual * gain; squares[p, b] = sum of squares of part p.

    Shapes: x [B, K], weight [N, K], scaled [B, N] of one 16-bit dtype; bias, gain (the next norm's weight) float32 [N];
        residual float32 [B, N]; squares float32 [N / tiling.rows, B_max].
    """
    (num_batch, width), (num_rows, _) = x.shape, weight.shape
    tiling = fit_tiling(tiling, width)
    _linear_residual[(num_rows // tiling.rows,)](
        x,
        weight,
        bias,
        gain,
        residual,
        scaled,
        squares,
        num_batch,
        N=num_rows,
        K=width,
        R=tiling.rows,
        B=padded_batch(num_batch),
        B_MAX=squares.shape[1],
        BLOCK_K=tiling.block_k,
        SLICES=tiling.slices,
        STAGES=tiling.stages,
        HAS_BIAS=bias is not None,
        PDL=pdl,
        num_warps=tiling.slices,
        launch_pdl=pdl,
    )
