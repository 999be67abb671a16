"""Prefill attention's plain twin: one tile after another, keys gathered, softmax in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from twinpath.kernels.prefill_attention.spec import AttentionTiling, KeyParts
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows


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
    """As `launch.attend`."""
    group = shape.num_heads // shape.num_kv_heads
    for first, num_rows, start, slot in rows.tiles.tolist():
        if num_rows <= 0:
            continue
        end = start + num_rows
        table = rows.tables[slot, : -(-end // shape.page_size)].long()
        k, v = (p[table].transpose(0, 1).flatten(1, 2)[:, :end].float().repeat_interleave(group, 0) for p in pages)
        queries = q[first : first + num_rows].view(num_rows, shape.num_heads, -1).transpose(0, 1).float()
        scores = queries @ k.transpose(1, 2) * scale
        at = torch.arange(start, end, device=q.device)[:, None]
        key = torch.arange(end, device=q.device)[None, :]
        seen = (key <= at) if window is None else (key <= at) & (key > at - window)
        shares = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[first : first + num_rows] = (shares @ v).transpose(0, 1).flatten(1).to(out.dtype)
