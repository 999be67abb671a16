"""Runs prefill attention; allocates nothing and may be captured."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from twinpath.kernels.prefill_attention.kernel import prefill_attention_kernel
from twinpath.kernels.prefill_attention.spec import AttentionTiling, packed_heads
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows

#: Wider than any position.
_NO_WINDOW = 1 << 30


def attend(
    q: Tensor,
    rows: Rows,
    pages: tuple[Tensor, Tensor],
    out: Tensor,
    scale: float,
    window: int | None,
    shape: HeadShape,
    tiling: AttentionTiling,
) -> None:
    """Rows over their own context, which `pages` hold up to and including themselves.

    Shapes: q and out [R, H * D]; pages: k and v of one layer, [num_pages, K, page_size, D] each.
    """
    pack = packed_heads(shape)
    grid = (shape.num_heads // pack, rows.tiles.shape[0])
    prefill_attention_kernel[grid](
        q, rows.tiles, rows.tables, rows.tables.stride(0), pages[0], pages[1], out,
        scale * math.log2(math.e), window or _NO_WINDOW,
        H=shape.num_heads, K=shape.num_kv_heads, D=shape.head_dim, DIM=max(16, triton.next_power_of_2(shape.head_dim)),
        PAGE=shape.page_size, PACK=pack, M=tiling.lanes, N=tiling.keys,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tiling.warps if len(q) < tiling.long_rows else tiling.warps_of_long, num_stages=tiling.stages,
    )  # fmt: skip
