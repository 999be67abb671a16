"""Device functions that several kernels share: a weight tile times a few rows, the scale of a norm, waits.

Shape letters: R weight rows of one program, B batch rows (padded to a power of two), K the summed axis.

Weights take the place of the large matrix operand (R rows are the M of an `mma`), the batch the small one, so one
program's tensor-core work is the same for 1 to 8 rows and the sum over K has one order whatever the neighbours are.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def await_previous_kernel(PDL: tl.constexpr):
    """Nothing that the kernel before writes is read above this line.

    The trigger follows the wait: when a kernel begins, the last but one has ended, so that reads above the wait may
    touch what older kernels wrote.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def begin_between_products(PDL: tl.constexpr):
    """Nothing but weights is touched above this line.

    The trigger comes first: the next product asks for its weights while this kernel waits and works, and touches
    nothing else before its own wait, which ends after this kernel has.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def row_tile_product(
    w_ptr,
    rows,
    x_ptr,
    num_batch,
    K: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """W[rows] @ x^T in float32, [R, B]. w [any, K], x [num_batch, K], both contiguous; rows int32 [R].

    Each warp sums its own slice of K (the batch axis of a 3D dot is spread over warps); slices are added in order at
    the end.
    """
    SLICE_K: tl.constexpr = K // SLICES
    slices = tl.arange(0, SLICES)[:, None, None] * SLICE_K
    w_ptrs = w_ptr + rows.to(tl.int64)[None, :, None] * K + slices + tl.arange(0, BLOCK_K)[None, None, :]
    batch = tl.arange(0, B)[None, None, :]
    x_ptrs = x_ptr + batch * K + slices + tl.arange(0, BLOCK_K)[None, :, None]
    sums = tl.zeros([SLICES, R, B], tl.float32)
    for k in tl.range(0, SLICE_K, BLOCK_K, num_stages=STAGES):
        w = tl.load(w_ptrs + k, eviction_policy="evict_first")
        x = tl.load(x_ptrs + k, mask=batch < num_batch, other=0.0)
        sums = tl.dot(w, x, sums, input_precision="ieee")
    return tl.sum(sums, axis=0)


@triton.jit
def inverse_rms(squares_ptr, num_parts, width, eps, PARTS: tl.constexpr, B: tl.constexpr, B_MAX: tl.constexpr):
    """1 / sqrt(mean of squares + eps) of each row, [B], from partial sums [num_parts, B_MAX] added in a fixed order."""
    parts = tl.arange(0, PARTS)[:, None]
    batch = tl.arange(0, B)[None, :]
    squares = tl.load(squares_ptr + parts * B_MAX + batch, mask=parts < num_parts, other=0.0)
    return tl.rsqrt(tl.sum(squares, axis=0) / width + eps)
