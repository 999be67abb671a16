"""The row kernels' plain twins, same signatures."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from twinpath.kernels.prefill_rows.spec import HeadShape, Rows


def embed_rows(rows: Rows, embed: Tensor, scale: float, residual: Tensor) -> None:
    is_row = rows.slots >= 0
    slots, positions = rows.slots.clamp(min=0).long(), rows.positions.clamp(min=0).long()
    tokens = torch.where(rows.tokens < 0, rows.history[slots, positions], rows.tokens)
    tokens = torch.where(is_row, tokens, 0).long()
    residual.copy_(torch.where(is_row[:, None], embed[tokens].float() * scale, 0.0))


def add_norm(
    residual: Tensor,
    delta: Tensor | None,
    weight: Tensor | None,
    out: Tensor,
    eps: float,
    *,
    bias: Tensor | None = None,
    post_weight: Tensor | None = None,
    picked: Tensor | None = None,
    pdl: bool = False,
) -> None:
    if delta is not None and delta.ndim == 3:
        delta = delta.sum(0)
    x = residual if picked is None else residual[picked.clamp(min=0).long()]
    if delta is not None:
        change = delta.float() if bias is None else delta.float() + bias
        if post_weight is not None:
            change = _norm(change, post_weight, eps).to(out.dtype).float()
        x = residual.add_(change)
    if weight is not None:
        out.copy_(_norm(x, weight, eps))


def rotate_append(
    qkv: Tensor,
    bias: Tensor | None,
    head_norms: tuple[Tensor, Tensor] | None,
    rope: Tensor,
    rows: Rows,
    q: Tensor,
    pages: tuple[Tensor, Tensor],
    shape: HeadShape,
    *,
    pdl: bool = False,
) -> None:
    dtype, size = q.dtype, shape.head_dim
    qkv = qkv.sum(0).to(dtype) if qkv.ndim == 3 else qkv
    values = qkv if bias is None else (qkv.float() + bias).to(dtype)
    heads = values.view(len(qkv), -1, size).float()
    first_key, first_value = shape.num_heads, shape.num_heads + shape.num_kv_heads
    queries, keys, own = heads[:, :first_key], heads[:, first_key:first_value], heads[:, first_value:]
    if head_norms is not None:
        queries = _norm(queries, head_norms[0], shape.norm_eps).to(dtype).float()
        keys = _norm(keys, head_norms[1], shape.norm_eps).to(dtype).float()
    positions = rows.positions.clamp(min=0).long()
    cos, sin = rope[positions][:, None].chunk(2, dim=-1)
    q.copy_(_rotate(queries, cos, sin).flatten(1))
    is_row = rows.slots >= 0
    slots, positions = rows.slots[is_row].long(), positions[is_row]
    page, cell = rows.tables[slots, positions // shape.page_size].long(), positions % shape.page_size
    pages[0][page, :, cell] = _rotate(keys, cos, sin).to(dtype)[is_row]
    pages[1][page, :, cell] = own.to(dtype)[is_row]


def gate(gate_up: Tensor, activation: Literal["silu", "gelu_tanh"], out: Tensor) -> None:
    gates, up = gate_up.chunk(2, dim=-1)
    gates = F.silu(gates) if activation == "silu" else F.gelu(gates, approximate="tanh")
    torch.mul(gates, up, out=out)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
