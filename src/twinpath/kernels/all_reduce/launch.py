"""Runs the exchange kernels, which may be captured. All ranks launch the same ones in the same order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from twinpath.kernels.all_reduce import kernel
from twinpath.kernels.all_reduce.spec import REGION, Exchange

_BLOCK = 1024
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def residual_parts(width: int, *, whole_rows: bool) -> int:
    """Parts of `squares` that `reduce_residual` writes; whole_rows: there is a norm of its own."""
    return 1 if whole_rows else triton.cdiv(width, REGION)


def reduce_residual(
    partial: Tensor,
    bias: Tensor | None,
    post_gain: Tensor | None,
    gain: Tensor,
    residual: Tensor,
    scaled: Tensor,
    squares: Tensor,
    eps: float,
    exchange: Exchange | None,
    *,
    push: bool = True,
    take: bool = True,
    pdl: bool = False,
) -> None:
    """residual += norm(sum over ranks of `partial` + bias), and what the next norm needs, as of `linear_residual`.

    Shapes: partial, residual float32 and scaled [B, hidden]; bias, post_gain (a norm of its own; None: none), gain
        float32 [hidden]; squares float32 [residual_parts, B_max].

    exchange: None where `partial` holds the sum already.
    """
    num_rows, width = residual.shape
    parts = residual_parts(width, whole_rows=post_gain is not None)
    block = REGION if post_gain is None else max(REGION, triton.next_power_of_2(width))
    if squares.shape[0] != parts:
        raise ValueError(f"squares has {squares.shape[0]} parts, these kernels write {parts}")
    if exchange is not None and num_rows * parts * block > exchange.capacity:
        raise ValueError(f"{num_rows} rows of {width} do not fit the inbox")
    rank, world, capacity = (0, 1, REGION) if exchange is None else _place(exchange)
    kernel.reduce_residual_kernel[(num_rows, parts)](
        partial, bias, post_gain, gain, residual, scaled, squares,
        exchange and exchange.inboxes, exchange and exchange.epochs, eps,
        WIDTH=width, BLOCK=block, B_MAX=squares.shape[1], HAS_BIAS=bias is not None, HAS_POST=post_gain is not None,
        RANK=rank, WORLD=world, CAPACITY=capacity, REGION=REGION, PUSH=push, TAKE=take, PDL=pdl,
        num_warps=max(4, min(16, block // 256)), launch_pdl=pdl,
    )  # fmt: skip


def fits(x: Tensor, exchange: Exchange) -> bool:
    """Whether `add_up` takes a tensor of this size."""
    num_bytes = x.numel() * x.element_size()
    return num_bytes % 4 == 0 and triton.cdiv(num_bytes // 4, _BLOCK) * _BLOCK <= exchange.capacity


def add_up(x: Tensor, exchange: Exchange, *, push: bool = True, take: bool = True) -> None:
    """x (contiguous) = its sum over the ranks, the same bits on each."""
    if not fits(x, exchange):
        raise ValueError(f"{x.numel()} values of {x.dtype} do not fit the inbox")
    words = x.view(-1).view(torch.int32)
    rank, world, capacity = _place(exchange)
    kernel.add_up_kernel[(triton.cdiv(words.numel(), _BLOCK),)](
        words, exchange.inboxes, exchange.epochs, words.numel(),
        BLOCK=_BLOCK, DTYPE=_TYPES[x.dtype], IS_HALF=x.element_size() == 2, RANK=rank, WORLD=world, CAPACITY=capacity,
        REGION=REGION, PUSH=push, TAKE=take, num_warps=4,
    )  # fmt: skip


def fitting_rows(size: int, exchange: Exchange) -> int:
    """Rows that `join` takes at once, of parts of `size` words."""
    return exchange.capacity // (-(-size // _BLOCK) * _BLOCK)


def join(part: Tensor, size: int, out: Tensor, exchange: Exchange, *, push: bool = True, take: bool = True) -> None:
    """out float32 [R, total] = all ranks' parts of each row side by side, the same on every rank.

    Shapes: part float32 [R, own] contiguous; all ranks have `size` columns, but the last ones what is left of total.
    """
    num_rows, own_size = part.shape
    if num_rows > fitting_rows(size, exchange):
        raise ValueError(f"{num_rows} rows of {size} do not fit the inbox")
    rank, world, capacity = _place(exchange)
    kernel.join_kernel[(num_rows, triton.cdiv(size, _BLOCK))](
        part.view(torch.int32), out.view(torch.int32), exchange.inboxes, exchange.epochs, own_size, size, out.shape[1],
        BLOCK=_BLOCK, RANK=rank, WORLD=world, CAPACITY=capacity, REGION=REGION, PUSH=push, TAKE=take, num_warps=4,
    )  # fmt: skip


def _place(exchange: Exchange) -> tuple[int, int, int]:
    return exchange.rank, exchange.world, exchange.capacity
