"""residual += norm(y), and what the next norm needs of the sum, in Triton (the sandwich of Gemma 3)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from twinpath.kernels.tile import await_previous_kernel


@triton.jit
def _residual_norm(
    y_ptr, post_gain_ptr, gain_ptr, residual_ptr, scaled_ptr, squares_ptr, num_parts, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, B_MAX: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    post_gain = tl.load(post_gain_ptr + columns, mask=inside, other=0.0)
    gain = tl.load(gain_ptr + columns, mask=inside, other=0.0)
    await_previous_kernel(PDL)
    cells = row.to(tl.int64) * WIDTH + columns
    y = tl.load(y_ptr + cells, mask=inside, other=0.0)
    residual = tl.load(residual_ptr + cells, mask=inside, other=0.0)
    residual += y * tl.rsqrt(tl.sum(y * y, axis=0) / WIDTH + eps) * post_gain
    tl.store(residual_ptr + cells, residual, mask=inside)
    tl.store(scaled_ptr + cells, (residual * gain).to(scaled_ptr.dtype.element_ty), mask=inside)
    part = tl.arange(0, PARTS)
    squares = tl.where(part == 0, tl.sum(residual * residual, axis=0), 0.0)
    tl.store(squares_ptr + part * B_MAX + row, squares, mask=part < num_parts)


def residual_norm(
    y: torch.Tensor,
    post_gain: torch.Tensor,
    eps: float,
    gain: torch.Tensor,
    residual: torch.Tensor,
    scaled: torch.Tensor,
    squares: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """residual[b] += y[b] / rms(y[b]) * post_gain; scaled and squares as of `linear_residual`.

    Shapes: y, residual float32 and scaled [B, hidden]; post_gain, gain float32 [hidden]; squares float32
        [parts, B_max], of which all but the first part become 0.
    """
    num_batch, width = residual.shape
    _residual_norm[(num_batch,)](
        y,
        post_gain,
        gain,
        residual,
        scaled,
        squares,
        squares.shape[0],
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        B_MAX=squares.shape[1],
        PARTS=triton.next_power_of_2(squares.shape[0]),
        PDL=pdl,
        num_warps=8,
        launch_pdl=pdl,
    )
