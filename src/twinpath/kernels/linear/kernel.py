"""y = scale * (W x) + bias for up to 64 rows, in Triton. One program computes `tiling.rows` outputs of every row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from twinpath.kernels.tile import await_previous_kernel, inverse_rms, row_tile_product
from twinpath.kernels.tiling import Tiling, fit_tiling, padded_batch


@triton.jit(do_not_specialize=["num_batch", "num_parts"])
def _linear(
    x_ptr,
    w_ptr,
    bias_ptr,
    squares_ptr,
    y_ptr,
    num_batch,
    num_parts,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    B_MAX: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NORMED: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * R
    rows = first + tl.arange(0, R)
    batch = tl.arange(0, B)
    await_previous_kernel(PDL)
    y = row_tile_product(w_ptr, rows, x_ptr, num_batch, K, R, B, BLOCK_K, SLICES, STAGES)
    if NORMED:
        y = y * inverse_rms(squares_ptr, num_parts, K, eps, PARTS, B, B_MAX)[None, :]
    if HAS_BIAS:
        y = y + tl.load(bias_ptr + rows)[:, None]
    tl.store(y_ptr + batch[None, :] * N + rows[:, None], y, mask=batch[None, :] < num_batch)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    squares: torch.Tensor | None,
    eps: float,
    y: torch.Tensor,
    *,
    tiling: Tiling,
    pdl: bool = False,
) -> None:
    """Write y[b] = r[b] * weight @ x[b] + bias, with r the inverse RMS that `squares` tells (1 when None).

    Shapes: x [B, K] and weight [N, K] of one 16-bit dtype; bias float32 [N]; squares float32 [parts, B_max], partial
        sums of squares of the K values before their norm; y float32 [B, N]. B <= 64, N a multiple of tiling.rows.
    """
    (num_batch, width), (num_rows, _) = x.shape, weight.shape
    tiling = fit_tiling(tiling, width)
    num_parts, max_batch = (1, 1) if squares is None else squares.shape
    _linear[(num_rows // tiling.rows,)](
        x,
        weight,
        bias,
        squares,
        y,
        num_batch,
        num_parts,
        eps,
        N=num_rows,
        K=width,
        R=tiling.rows,
        B=padded_batch(num_batch),
        B_MAX=max_batch,
        PARTS=triton.next_power_of_2(num_parts),
        BLOCK_K=tiling.block_k,
        SLICES=tiling.slices,
        STAGES=tiling.stages,
        HAS_BIAS=bias is not None,
        NORMED=squares is not None,
        PDL=pdl,
        num_warps=tiling.slices,
        launch_pdl=pdl,
    )
