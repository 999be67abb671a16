"""Runs the row kernels; all write into tensors given, allocate nothing and may be captured."""

from __future__ import annotations

from typing import Literal

import triton
from torch import Tensor

from twinpath.kernels.prefill_rows import kernel
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows

_GATE_BLOCK = 1024


def embed_rows(rows: Rows, embed: Tensor, scale: float, residual: Tensor) -> None:
    """residual float32 [R, hidden] = embed rows of the tokens, scaled; zero for padding."""
    hidden = residual.shape[1]
    block = triton.next_power_of_2(hidden)
    kernel.embed_kernel[(residual.shape[0],)](
        rows.tokens, rows.positions, rows.slots, rows.history, rows.history.stride(0), embed, scale, residual, hidden,
        BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip


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
    """residual += delta + bias (through a norm of its own with `post_weight`); out = norm(residual) * weight.

    Shapes: residual float32 [R, hidden]; delta [R, hidden], or float32 [S, R, hidden] to be added along S, or None;
        out [R, hidden] of the model's type, not written without `weight`. With `picked` int32 [P] only those rows are
        read, out is [P, hidden], delta must be None.
    pdl: between two products that keep to `begin_between_products`.
    """
    hidden = residual.shape[1]
    block = triton.next_power_of_2(hidden)
    num_rows = residual.shape[0] if picked is None else picked.shape[0]
    kernel.add_norm_kernel[(num_rows,)](
        residual, delta if delta is not None else residual, bias, post_weight, weight, out, picked, hidden, eps,
        HAS_DELTA=delta is not None, HAS_BIAS=bias is not None, HAS_POST=post_weight is not None,
        HAS_OUT=weight is not None, IS_PICKED=picked is not None, BLOCK=block,
        PARTS=1 if delta is None or delta.ndim == 2 else len(delta), PDL=pdl, num_warps=_warps(block), launch_pdl=pdl,
    )  # fmt: skip


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
    """Head norms and rotation; q [R, H * D] is written, k and v go to their pages.

    Shapes: qkv [R, (H + 2 K) * D], or float32 [S, R, (H + 2 K) * D] to be added along S; rope float32
        [positions, D] (cos, then sin); pages: k and v of one layer, [num_pages, K, page_size, D] each.
    """
    q_norm, k_norm = head_norms or (None, None)
    kernel.rotate_append_kernel[(qkv.shape[-2], 3)](
        qkv, bias, q_norm, k_norm, rope, rows.positions, rows.slots, rows.tables, rows.tables.stride(0),
        q, pages[0], pages[1], shape.norm_eps,
        H=shape.num_heads, K=shape.num_kv_heads, D=shape.head_dim, PAGE=shape.page_size,
        HAS_BIAS=bias is not None, HAS_NORM=head_norms is not None,
        HEADS=triton.next_power_of_2(shape.num_heads), HALF=triton.next_power_of_2(shape.head_dim // 2),
        PARTS=1 if qkv.ndim == 2 else len(qkv), PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip


def gate(gate_up: Tensor, activation: Literal["silu", "gelu_tanh"], out: Tensor) -> None:
    """out [R, I] = act(gate) * up from gate_up [R, 2 I]."""
    rows, inner = out.shape
    kernel.gate_kernel[(rows, triton.cdiv(inner, _GATE_BLOCK))](
        gate_up, out, inner, IS_GELU=activation == "gelu_tanh", BLOCK=_GATE_BLOCK, num_warps=4
    )


def _warps(block: int) -> int:
    return max(1, min(16, block // 256))
