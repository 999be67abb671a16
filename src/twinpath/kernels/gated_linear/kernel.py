"""act(gate x) * (up x) for up to 64 rows, in Triton. One program computes rows / 2 gates and their ups together."""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl

from twinpath.kernels.tile import await_previous_kernel, inverse_rms, row_tile_product
from twinpath.kernels.tiling import Tiling, fit_tiling, padded_batch


@triton.jit
def _activate(x, GELU: tl.constexpr):
    if GELU:
        # tanh form; 2 * sigmoid(2 u) - 1 is tanh(u).
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * tl.sigmoid(2.0 * inner)
    return x * tl.sigmoid(x)


@triton.jit(do_not_specialize=["num_batch", "num_parts"])
def _gated_linear(
    x_ptr,
    w_ptr,
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
    GELU: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * R
    both = tl.arange(0, 2 * R)
    rows = first + both % R + both // R * N
    batch = tl.arange(0, B)
    await_previous_kernel(PDL)
    both_sums = row_tile_product(w_ptr, rows, x_ptr, num_batch, K, 2 * R, B, BLOCK_K, SLICES, STAGES)
    both_sums = both_sums * inverse_rms(squares_ptr, num_parts, K, eps, PARTS, B, B_MAX)[None, :]
    gate, up = tl.split(tl.permute(tl.reshape(both_sums, [2, R, B]), [1, 2, 0]))
    y = (_activate(gate, GELU) * up).to(y_ptr.dtype.element_ty)
    out_rows = first + tl.arange(0, R)
    tl.store(y_ptr + batch[None, :] * N + out_rows[:, None], y, mask=batch[None, :] < num_batch)


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    squares: torch.Tensor,
    eps: float,
    activation: Literal["silu", "gelu_tanh"],
    y: torch.Tensor,
    *,
    tiling: Tiling,
    pdl: bool = False,
) -> None:
    """Write y[b] = act(r gate @ x[b]) * (r up @ x[b]), with r the inverse RMS that `squares` tells.

    Shapes: x [B, K], weight [2 N, K] (gates, then ups), y [B, N] of one 16-bit dtype; squares float32 [parts, B_max].
        N is a multiple of tiling.rows.
    """
    (num_batch, width), num_rows = x.shape, weight.shape[0] // 2
    tiling = fit_tiling(tiling, width)
    num_parts, max_batch = squares.shape
    _gated_linear[(num_rows // tiling.rows,)](
        x,
        weight,
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
        GELU=activation == "gelu_tanh",
        PDL=pdl,
        num_warps=tiling.slices,
        launch_pdl=pdl,
    )
