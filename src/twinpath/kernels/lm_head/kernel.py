"""Logits of every row with the largest of each tile, then the largest of all, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from twinpath.kernels.tile import await_previous_kernel, inverse_rms, row_tile_product
from twinpath.kernels.tiling import Tiling, fit_tiling, padded_batch


@triton.jit(do_not_specialize=["num_batch", "num_parts"])
def _lm_head(
    x_ptr,
    w_ptr,
    squares_ptr,
    logits_ptr,
    best_ptr,
    best_id_ptr,
    num_batch,
    num_parts,
    eps,
    V: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    B_MAX: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(0)
    first = tile * R
    rows = first + tl.arange(0, R)
    batch = tl.arange(0, B)
    await_previous_kernel(PDL)
    product = row_tile_product(w_ptr, tl.minimum(rows, V - 1), x_ptr, num_batch, K, R, B, BLOCK_K, SLICES, STAGES)
    logits = product * inverse_rms(squares_ptr, num_parts, K, eps, PARTS, B, B_MAX)[None, :]
    inside = (batch[None, :] < num_batch) & (rows[:, None] < V)
    tl.store(logits_ptr + batch[None, :].to(tl.int64) * V + rows[:, None], logits, mask=inside)
    best = tl.max(tl.where(rows[:, None] < V, logits, float("-inf")), axis=0)
    best_id = tl.min(tl.where((logits == best[None, :]) & (rows[:, None] < V), rows[:, None], V), axis=0)
    cells = batch.to(tl.int64) * tl.num_programs(0) + tile
    tl.store(best_ptr + cells, best, mask=batch < num_batch)
    tl.store(best_id_ptr + cells, best_id, mask=batch < num_batch)


@triton.jit
def _argmax(
    best_ptr, best_id_ptr, argmax_ptr, tokens_ptr, positions_ptr, num_tiles,
    BLOCK: tl.constexpr, FEED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    await_previous_kernel(PDL)
    values = tl.full([BLOCK], float("-inf"), tl.float32)
    ids = tl.full([BLOCK], 0x7FFFFFFF, tl.int32)
    for start in range(0, num_tiles, BLOCK):
        cells = row.to(tl.int64) * num_tiles + start + offsets
        inside = start + offsets < num_tiles
        value = tl.load(best_ptr + cells, mask=inside, other=float("-inf"))
        index = tl.load(best_id_ptr + cells, mask=inside, other=0x7FFFFFFF)
        wins = (value > values) | ((value == values) & (index < ids))
        values = tl.where(wins, value, values)
        ids = tl.where(wins, index, ids)
    best = tl.max(values, axis=0)
    token = tl.min(tl.where(values == best, ids, 0x7FFFFFFF), axis=0)
    tl.store(argmax_ptr + row, token)
    if FEED:
        position = tl.load(positions_ptr + row)
        tl.store(tokens_ptr + row, token)
        tl.store(positions_ptr + row, tl.where(position >= 0, position + 1, position))


@triton.jit
def _best_of_tiles(logits_ptr, best_ptr, best_id_ptr, vocab_size, BLOCK: tl.constexpr):
    row, tile = tl.program_id(0), tl.program_id(1)
    ids = tile * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    values = tl.load(logits_ptr + row.to(tl.int64) * vocab_size + ids, mask=inside, other=float("-inf"))
    best = tl.max(values, axis=0)
    best_id = tl.min(tl.where((values == best) & inside, ids, vocab_size), axis=0)
    cell = row * tl.num_programs(1) + tile
    tl.store(best_ptr + cell, best)
    tl.store(best_id_ptr + cell, best_id)


_BEST_BLOCK = 4096


def num_best_tiles(vocab_size: int) -> int:
    """Columns of `best` and `best_id` as `best_of_tiles` writes them."""
    return triton.cdiv(vocab_size, _BEST_BLOCK)


def best_of_tiles(logits: torch.Tensor, best: torch.Tensor, best_id: torch.Tensor) -> None:
    """The best of each 4,096 logits, the lowest id among equal ones; for `argmax`, where a library made the logits.

    Shapes: logits float32 [B, V], contiguous; best float32, best_id int32 [B, num_best_tiles(V)].
    """
    (num_batch, vocab_size), tiles = logits.shape, best.shape[1]
    _best_of_tiles[(num_batch, tiles)](logits, best, best_id, vocab_size, BLOCK=_BEST_BLOCK, num_warps=8)


def num_tiles(vocab_size: int, tiling: Tiling) -> int:
    """Columns of `best` and `best_id`."""
    return -(-vocab_size // tiling.rows)


def lm_head(
    x: torch.Tensor,
    weight: torch.Tensor,
    squares: torch.Tensor,
    eps: float,
    logits: torch.Tensor,
    best: torch.Tensor,
    best_id: torch.Tensor,
    *,
    tiling: Tiling,
    pdl: bool = False,
) -> None:
    """Write logits[b] = r weight @ x[b] with r the inverse RMS that `squares` tells, and each tile's best (lowest id).

    Shapes: x [B, K], weight [V, K] of one 16-bit dtype; squares float32 [parts, B_max]; logits float32 [B, V];
        best float32, best_id int32 [B, num_tiles(V)].
    """
    (num_batch, width), (vocab_size, _) = x.shape, weight.shape
    tiling = fit_tiling(tiling, width)
    num_parts, max_batch = squares.shape
    _lm_head[(num_tiles(vocab_size, tiling),)](
        x,
        weight,
        squares,
        logits,
        best,
        best_id,
        num_batch,
        num_parts,
        eps,
        V=vocab_size,
        K=width,
        R=tiling.rows,
        B=padded_batch(num_batch),
        B_MAX=max_batch,
        PARTS=triton.next_power_of_2(num_parts),
        BLOCK_K=tiling.block_k,
        SLICES=tiling.slices,
        STAGES=tiling.stages,
        PDL=pdl,
        num_warps=tiling.slices,
        launch_pdl=pdl,
    )


def argmax(
    best: torch.Tensor,
    best_id: torch.Tensor,
    chosen: torch.Tensor,
    feed: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    pdl: bool = False,
) -> None:
    """chosen[b] int32 = the id of row b's largest logit, the lowest among equal ones; best, best_id as of `lm_head`.

    With `feed` (tokens, positions; int32 [B]) the next step's input is written too: tokens = chosen, and positions
    grow by one except where they are -1.
    """
    num_batch, tiles = best.shape
    tokens, positions = feed or (None, None)
    _argmax[(num_batch,)](
        best,
        best_id,
        chosen,
        tokens,
        positions,
        tiles,
        BLOCK=4096,
        FEED=feed is not None,
        PDL=pdl,
        num_warps=16,
        launch_pdl=pdl,
    )
