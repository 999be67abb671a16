"""Runs prefill attention; allocates nothing and may be captured."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from twinpath.kernels.prefill_attention.kernel import prefill_attention_kernel
from twinpath.kernels.prefill_attention.spec import AttentionTiling, KeyParts, packed_heads
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows

#: Wider than any position.
_NO_WINDOW = 1 << 30
_NO_PARTS = (None, None, None)


def attend(
    q: Tensor,
    rows: Rows,
    pages: tuple[Tensor, Tensor],
    out: Tensor,
    scale: float,
    window: int | None,
    shape: HeadShape,
    tiling: AttentionTiling,
    parts: KeyParts | None = None,
) -> None:
    """Rows over their own context, which `pages` hold up to and including themselves.

    Shapes: q and out [R, H * D]; pages: k and v of one layer, [num_pages, K, page_size, D] each.

    With `parts`, a few rows after a long context share it among programs; a row's bits then depend on how many parts
    its context has, which depends on the step's tiles. Without, they depend on nothing but the row.
    """
    pack = packed_heads(shape)
    grid = (shape.num_heads // pack, rows.tiles.shape[0])
    keys, stages = (tiling.keys, tiling.stages) if parts is None else tiling.shared
    prefill_attention_kernel[grid](
        q, rows.tiles, rows.tables, rows.tables.stride(0), pages[0], pages[1], out,
        scale * math.log2(math.e), window or _NO_WINDOW, *(_NO_PARTS if parts is None else parts.tensors),
        H=shape.num_heads, K=shape.num_kv_heads, D=shape.head_dim, DIM=max(16, triton.next_power_of_2(shape.head_dim)),
        PAGE=shape.page_size, PACK=pack, M=tiling.lanes, N=keys,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        SPLIT=parts is not None, TILES=1 if parts is None else parts.most_tiles,
        TARGET=tiling.programs, LEAST=tiling.least_keys,
        num_warps=tiling.warps if len(q) < tiling.long_rows else tiling.warps_of_long, num_stages=stages,
    )  # fmt: skip
