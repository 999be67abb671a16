"""Runs the row kernels; all write into tensors given, allocate nothing and may be captured."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
import triton
from torch import Tensor

from twinpath.kernels.prefill_rows import kernel
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows

_GATE_BLOCK = 1024
#: Well below what L2 holds beside the rows.
_PREFETCH_BYTES = 34 << 20


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
    ahead: Tensor | None = None,
) -> None:
    """residual += delta + bias (through a norm of its own with `post_weight`); out = norm(residual) * weight.

    Shapes: residual float32 [R, hidden]; delta [R, hidden] or None; out [R, hidden] of the model's type, not written
        without `weight`. With `picked` int32 [P] only those rows are read, out is [P, hidden], delta must be None.
    ahead: weights of the next product, asked for on the way.
    """
    hidden = residual.shape[1]
    block = triton.next_power_of_2(hidden)
    num_rows = residual.shape[0] if picked is None else picked.shape[0]
    extra, chunks = _prefetches(ahead)
    kernel.add_norm_kernel[(num_rows + extra,)](
        residual, delta if delta is not None else residual, bias, post_weight, weight, out, picked, hidden, eps,
        num_rows, ahead, hidden if ahead is None else ahead.shape[1],
        HAS_DELTA=delta is not None, HAS_BIAS=bias is not None, HAS_POST=post_weight is not None,
        HAS_OUT=weight is not None, IS_PICKED=picked is not None, BLOCK=block,
        CHUNKS=chunks, num_warps=_warps(block), **_dependent(residual.device),
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
    ahead: Tensor | None = None,
) -> None:
    """Head norms and rotation; q [R, H * D] is written, k and v go to their pages.

    Shapes: qkv [R, (H + 2 K) * D]; rope float32 [positions, D] (cos, then sin); pages: k and v of one layer,
        [num_pages, K, page_size, D] each.
    """
    q_norm, k_norm = head_norms or (None, None)
    extra, chunks = _prefetches(ahead)
    kernel.rotate_append_kernel[(qkv.shape[0] + extra, 3)](
        qkv, bias, q_norm, k_norm, rope, rows.positions, rows.slots, rows.tables, rows.tables.stride(0),
        q, pages[0], pages[1], shape.norm_eps, qkv.shape[0], ahead, 0 if ahead is None else ahead.shape[1],
        H=shape.num_heads, K=shape.num_kv_heads, D=shape.head_dim, PAGE=shape.page_size,
        HAS_BIAS=bias is not None, HAS_NORM=head_norms is not None,
        HEADS=triton.next_power_of_2(shape.num_heads), HALF=triton.next_power_of_2(shape.head_dim // 2),
        CHUNKS=chunks, num_warps=4, **_dependent(qkv.device),
    )  # fmt: skip


def gate(gate_up: Tensor, activation: Literal["silu", "gelu_tanh"], out: Tensor, ahead: Tensor | None = None) -> None:
    """out [R, I] = act(gate) * up from gate_up [R, 2 I]."""
    rows, inner = out.shape
    extra, chunks = _prefetches(ahead)
    kernel.gate_kernel[(rows + extra, triton.cdiv(inner, _GATE_BLOCK))](
        gate_up, out, inner, rows, ahead, 0 if ahead is None else ahead.shape[1],
        IS_GELU=activation == "gelu_tanh", BLOCK=_GATE_BLOCK, CHUNKS=chunks, num_warps=4, **_dependent(out.device),
    )  # fmt: skip


def _warps(block: int) -> int:
    return max(1, min(16, block // 256))


def _prefetches(weights: Tensor | None) -> tuple[int, int]:
    """Programs of 128 KiB each that ask for the beginnings of all rows of `weights`, and the KiB of one row."""
    if weights is None or weights.dtype.itemsize != 2 or not _is_hopper(weights.device):
        return 0, 0
    rows, columns = weights.shape
    chunks = min(_PREFETCH_BYTES // (rows * 1024), columns // 512)
    return (rows * chunks // 128, chunks) if rows % 128 == 0 else (0, 0)


def _dependent(device: torch.device) -> dict[str, Any]:
    """Launch options: begin while the kernel before ends, where the card can."""
    return {"PDL": True, "launch_pdl": True} if _is_hopper(device) else {"PDL": False}


@cache
def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
