"""x @ w.T in Triton, K walked from its begin to its end by one program: no split, no choice by shape."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def fixed_linear_kernel(
    x, w, out, num_rows, N, K, X_STRIDE, OUT_STRIDE,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Programs along M first: those that read the same weights run at the same time."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    columns = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    summed = tl.arange(0, TILE_K)
    x_ptrs = x + rows.to(tl.int64)[:, None] * X_STRIDE + summed[None, :]
    w_ptrs = w + columns.to(tl.int64)[None, :] * K + summed[:, None]
    is_row, is_column = rows < num_rows, columns < N
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for k in range(0, K, TILE_K):
        if EVEN_K:
            a = tl.load(x_ptrs + k, mask=is_row[:, None], other=0.0)
            b = tl.load(w_ptrs + k, mask=is_column[None, :], other=0.0)
        else:
            is_summed = summed + k < K
            a = tl.load(x_ptrs + k, mask=is_row[:, None] & is_summed[None, :], other=0.0)
            b = tl.load(w_ptrs + k, mask=is_column[None, :] & is_summed[:, None], other=0.0)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    out_ptrs = out + rows.to(tl.int64)[:, None] * OUT_STRIDE + columns[None, :]
    tl.store(out_ptrs, sums.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
