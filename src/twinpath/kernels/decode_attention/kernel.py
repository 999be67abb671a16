"""One decode step's attention over paged keys and values, in Triton: norm and rotate q and k, append, attend, merge.

Program (split s, key head h, row b) attends positions [borders[b, s], borders[b, s + 1]) for all query heads of h; the
split that holds the new token appends its key and value first. The last program of (h, b) to arrive adds the splits up
in their order, so the result does not depend on who was last. Source: Dao et al. 2023, Flash-Decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from twinpath.kernels.tile import await_previous_kernel


@triton.jit
def _norm_and_rotate(
    low, high, gain_ptr, rope_ptr, position, eps, D: tl.constexpr, NORMED: tl.constexpr, axis: tl.constexpr
):
    """RMS norm over a head, then the rotation of its halves; low, high float32 [.., D / 2] along the last axis."""
    half = tl.arange(0, D // 2)
    if NORMED:
        squares = tl.sum(low * low, axis=axis, keep_dims=True) + tl.sum(high * high, axis=axis, keep_dims=True)
        scale = tl.rsqrt(squares / D + eps)
        low = low * scale * tl.load(gain_ptr + half)
        high = high * scale * tl.load(gain_ptr + D // 2 + half)
    cos = tl.load(rope_ptr + position.to(tl.int64) * D + half)
    sin = tl.load(rope_ptr + position.to(tl.int64) * D + D // 2 + half)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _append(
    qkv, k_gain_ptr, rope_ptr, k_ptr, v_ptr, page, head, position, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Store the new token's key (normed, rotated) and value; `qkv` points at the row's projections."""
    half = tl.arange(0, D // 2)
    k = qkv + (HEADS + head) * D
    low, high = _norm_and_rotate(
        tl.load(k + half), tl.load(k + D // 2 + half), k_gain_ptr, rope_ptr, position, eps, D, NORMED, 0
    )
    cell = ((page * KV_HEADS + head) * PAGE + position % PAGE) * D
    tl.store(k_ptr + cell + half, low.to(k_ptr.dtype.element_ty))
    tl.store(k_ptr + cell + D // 2 + half, high.to(k_ptr.dtype.element_ty))
    whole = tl.arange(0, D)
    v = tl.load(qkv + (HEADS + KV_HEADS + head) * D + whole)
    tl.store(v_ptr + cell + whole, v.to(v_ptr.dtype.element_ty))


@triton.jit
def _attend_tokens(
    q_low, q_high, k_ptr, v_ptr, table_ptr, head, begin, end, scale,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Running softmax over [begin, end): unnormalised sums [ROWS, D], largest score and sum of weights [ROWS]."""
    sums = tl.zeros([ROWS, D], tl.float32)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    half = tl.arange(0, D // 2)[None, :]
    whole = tl.arange(0, D)[None, :]
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        token = start + tl.arange(0, TILE)
        inside = token < end
        page = tl.load(table_ptr + token // PAGE, mask=inside, other=0).to(tl.int64)
        cell = (((page * KV_HEADS + head) * PAGE + token % PAGE) * D)[:, None]
        k_low = tl.load(k_ptr + cell + half, mask=inside[:, None], other=0.0)
        k_high = tl.load(k_ptr + cell + D // 2 + half, mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + cell + whole, mask=inside[:, None], other=0.0)
        scores = tl.dot(q_low, tl.trans(k_low), input_precision="ieee")
        scores = tl.dot(q_high, tl.trans(k_high), scores, input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        decay = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * decay + tl.sum(weights, axis=1)
        sums = sums * decay[:, None]
        sums = tl.dot(weights.to(v.dtype), v, sums, input_precision="ieee")
        largest = new_largest
    return sums, largest, total


@triton.jit
def _merge(
    partial_ptr, stats_ptr, borders_ptr, out_ptr,
    GROUP: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add the splits of one (row, key head) in order: out [GROUP, D]."""
    group = tl.arange(0, ROWS)
    cells = group[:, None] * D + tl.arange(0, D)[None, :]
    inside = group < GROUP
    sums = tl.zeros([ROWS, D], tl.float32)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for s in tl.static_range(SPLITS):
        filled = tl.load(borders_ptr + s) < tl.load(borders_ptr + s + 1)
        here = inside & filled
        split_largest = tl.load(stats_ptr + s * 2 * GROUP + group, mask=here, other=float("-inf"), cache_modifier=".cg")
        split_total = tl.load(stats_ptr + (s * 2 + 1) * GROUP + group, mask=here, other=0.0, cache_modifier=".cg")
        split_sums = tl.load(partial_ptr + s * GROUP * D + cells, mask=here[:, None], other=0.0, cache_modifier=".cg")
        new_largest = tl.maximum(largest, split_largest)
        # Still -inf before the first split that is filled (and in rows that are padding): all weights are 0 then.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        decay = tl.exp2(largest - shift)
        weight = tl.exp2(split_largest - shift)
        total = total * decay + split_total * weight
        sums = sums * decay[:, None] + split_sums * weight[:, None]
        largest = new_largest
    out = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out_ptr + cells, out.to(out_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _decode_attention(
    qkv_ptr, q_gain_ptr, k_gain_ptr, rope_ptr, k_ptr, v_ptr, table_ptr, positions_ptr, borders_ptr,
    partial_ptr, stats_ptr, arrivals_ptr, out_ptr, eps, scale, max_pages,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, SPLITS: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, MERGE_ROWS: tl.constexpr, STAGES: tl.constexpr,
    NORMED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS
    split, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions_ptr + row)
    row_borders = borders_ptr + row * (SPLITS + 1)
    begin = tl.load(row_borders + split)
    end = tl.load(row_borders + split + 1)
    row_table = table_ptr + row.to(tl.int64) * max_pages
    await_previous_kernel(PDL)
    if position >= 0:
        qkv = qkv_ptr + row.to(tl.int64) * (HEADS + 2 * KV_HEADS) * D
        if (begin <= position) & (position < end):
            page = tl.load(row_table + position // PAGE).to(tl.int64)
            _append(
                qkv, k_gain_ptr, rope_ptr, k_ptr, v_ptr, page, head, position, eps, HEADS, KV_HEADS, D, PAGE, NORMED
            )  # fmt: skip
            tl.debug_barrier()
        group = tl.arange(0, ROWS)
        cells = (head * GROUP + group)[:, None] * D + tl.arange(0, D // 2)[None, :]
        inside = (group < GROUP)[:, None]
        low = tl.load(qkv + cells, mask=inside, other=0.0)
        high = tl.load(qkv + D // 2 + cells, mask=inside, other=0.0)
        low, high = _norm_and_rotate(low, high, q_gain_ptr, rope_ptr, position, eps, D, NORMED, 1)
        sums, largest, total = _attend_tokens(
            low.to(k_ptr.dtype.element_ty), high.to(k_ptr.dtype.element_ty), k_ptr, v_ptr, row_table, head, begin, end,
            scale, KV_HEADS, D, PAGE, TILE, ROWS, STAGES,
        )  # fmt: skip
        pair = row.to(tl.int64) * KV_HEADS + head
        out_cells = group[:, None] * D + tl.arange(0, D)[None, :]
        partials = partial_ptr + pair * SPLITS * GROUP * D
        stats = stats_ptr + pair * SPLITS * 2 * GROUP
        if begin < end:
            tl.store(partials + split * GROUP * D + out_cells, sums, mask=inside)
            tl.store(stats + split * 2 * GROUP + group, largest, mask=group < GROUP)
            tl.store(stats + (split * 2 + 1) * GROUP + group, total, mask=group < GROUP)
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals_ptr + pair, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS - 1:
            tl.store(arrivals_ptr + pair, 0)
            out = out_ptr + row.to(tl.int64) * HEADS * D + head * GROUP * D
            _merge(partials, stats, row_borders, out, GROUP, D, SPLITS, MERGE_ROWS)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What is fixed for every launch of one model. `head_dim` is a power of two, at least 32."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    #: q.k is multiplied with it before softmax.
    scale: float
    norm_eps: float
    num_splits: int
    tile: int = 64
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, slots=True)
class SplitBuffers:
    """Workspace of the splits: sums, largest score and total of each, and how many of a row's head have arrived.

    Shapes: partial float32 [B_max, K, splits, group, D]; stats float32 [B_max, K, splits, 2, group]; arrivals int32
        [B_max, K], zero before the first launch and again after each.
    """

    partial: torch.Tensor
    stats: torch.Tensor
    arrivals: torch.Tensor


def split_buffers(shape: AttentionShape, max_batch: int, device: torch.device) -> SplitBuffers:
    """Allocate once, before ready."""
    group = shape.num_heads // shape.num_kv_heads
    lead = (max_batch, shape.num_kv_heads, shape.num_splits)
    return SplitBuffers(
        partial=torch.zeros((*lead, group, shape.head_dim), device=device),
        stats=torch.zeros((*lead, 2, group), device=device),
        arrivals=torch.zeros(lead[:2], dtype=torch.int32, device=device),
    )


def decode_attention(
    qkv: torch.Tensor,
    gains: tuple[torch.Tensor, torch.Tensor] | None,
    rope: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    positions: torch.Tensor,
    borders: torch.Tensor,
    out: torch.Tensor,
    *,
    shape: AttentionShape,
    buffers: SplitBuffers,
    pdl: bool = False,
) -> None:
    """Attend one new token per row; its key and value are written to the cache first.

    Shapes: qkv float32 [B, (H + 2 K) D]; gains float32 [D] for q and k, or None; rope float32 [positions, D], cos then
        sin; cache k and v [num_pages, K, page_size, D]; block_tables int32 [B, max_pages]; positions int32 [B], -1:
        the row is padding and left alone; borders int32 [B, splits + 1], not decreasing, the last is position + 1, the
        first is where the row's window begins; out [B, H D] of the cache's dtype.
    """
    k, v = cache
    group = shape.num_heads // shape.num_kv_heads
    _decode_attention[(shape.num_splits, shape.num_kv_heads, qkv.shape[0])](
        qkv,
        *(gains or (None, None)),
        rope,
        k,
        v,
        block_tables,
        positions,
        borders,
        buffers.partial,
        buffers.stats,
        buffers.arrivals,
        out,
        shape.norm_eps,
        shape.scale * 1.4426950408889634,
        block_tables.shape[1],
        HEADS=shape.num_heads,
        KV_HEADS=shape.num_kv_heads,
        D=shape.head_dim,
        PAGE=shape.page_size,
        SPLITS=shape.num_splits,
        TILE=shape.tile,
        ROWS=max(16, triton.next_power_of_2(group)),
        MERGE_ROWS=triton.next_power_of_2(group),
        STAGES=shape.stages,
        NORMED=gains is not None,
        PDL=pdl,
        num_warps=shape.warps,
        launch_pdl=pdl,
    )
