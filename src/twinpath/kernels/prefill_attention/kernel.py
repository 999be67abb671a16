"""Paged prefill attention in Triton: online softmax over blocks of keys at fixed positions.

Blocks begin at multiples of their size whatever the chunk, and a block that is masked for a row leaves its sums as they
were, bit for bit: a row's result does not depend on how its prompt was cut. Source: Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _attend_blocks(
    acc, total, best, q, begin, end, table, k_head, v_head, positions, last_position, window, scale,
    PAGE_STRIDE: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, N: tl.constexpr,
    IS_MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the key blocks of [begin, end) to every row's running sums."""
    dims = tl.arange(0, DIM)
    for first in tl.range(begin, end, N):
        keys = first + tl.arange(0, N)
        page = tl.load(table + keys // PAGE, mask=keys <= last_position, other=0).to(tl.int64)
        cells = page * PAGE_STRIDE + (keys % PAGE) * D
        if IS_MASKED or DIM != D:
            inside = (keys <= last_position)[:, None] & (dims < D)[None, :]
            k = tl.load(k_head + cells[:, None] + dims[None, :], mask=inside, other=0.0)
            v = tl.load(v_head + cells[:, None] + dims[None, :], mask=inside, other=0.0)
        else:
            k = tl.load(k_head + cells[:, None] + dims[None, :])
            v = tl.load(v_head + cells[:, None] + dims[None, :])
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if IS_MASKED:
            seen = (keys[None, :] <= positions[:, None]) & (keys[None, :] > positions[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        shares = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(best - base)
        total = total * shrink + tl.sum(shares, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(shares.to(v.dtype), v, acc, input_precision=PRECISION)
        best = new_best
    return acc, total, best


@triton.jit
def _split_of(num_tiles, first_block, end, T: tl.constexpr, N: tl.constexpr, LEAST: tl.constexpr):
    """Keys of one part of the context [first_block, end), and how many parts there are.

    Of the programs, `num_tiles` have a tile of their own; the others take further parts of the same tiles.
    """
    spare = tl.num_programs(1) // num_tiles
    wanted = tl.maximum(T // (num_tiles * tl.num_programs(0)), 1)
    num = tl.minimum(tl.minimum(spare, wanted), tl.cdiv(end - first_block, LEAST))
    length = tl.cdiv(tl.cdiv(end - first_block, num), N) * N
    return length, tl.cdiv(end - first_block, length)


@triton.jit
def _merge_parts(
    sums, stats, cells, tile, group, num_tiles, num_parts, M: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """The parts of one tile in their order: sums [M, DIM] and total [M]."""
    lanes = tl.arange(0, M)
    acc = tl.zeros([M, DIM], tl.float32)
    total = tl.zeros([M], tl.float32)
    best = tl.full([M], float("-inf"), tl.float32)
    for part in range(num_parts):
        place = (group * tl.num_programs(1) + tile + part * num_tiles).to(tl.int64)
        part_best = tl.load(stats + place * 2 * M + lanes, cache_modifier=".cg")
        part_total = tl.load(stats + place * 2 * M + M + lanes, cache_modifier=".cg")
        part_acc = tl.load(sums + place * M * DIM + cells, cache_modifier=".cg")
        new_best = tl.maximum(best, part_best)
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        shrink, share = tl.exp2(best - base), tl.exp2(part_best - base)
        total = total * shrink + part_total * share
        acc = acc * shrink[:, None] + part_acc * share[:, None]
        best = new_best
    return acc, total


@triton.jit
def prefill_attention_kernel(
    q, tiles, tables, max_pages, k_pages, v_pages, out, scale, window, sums, stats, arrivals,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    PACK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
    SPLIT: tl.constexpr, TILES: tl.constexpr, TARGET: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Programs (head group, tile). A tile is M / PACK rows; the PACK query heads of one key head share a program.

    With SPLIT, programs without a tile of their own take parts of the others' contexts, and who is last for a tile
    adds its parts up in their order. `tiles` fill from the front.
    """
    group, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)  # the longest first
    part, num_tiles = 0, 0
    if SPLIT:
        slots = tl.arange(0, TILES)
        counts = tl.load(tiles + slots * 4 + 1, mask=slots < tl.num_programs(1), other=0)
        num_tiles = tl.maximum(tl.sum((counts > 0).to(tl.int32), 0), 1)
        part, tile = tl.program_id(1) // num_tiles, tl.program_id(1) % num_tiles
    num_rows = tl.load(tiles + tile * 4 + 1)
    if num_rows <= 0:
        return
    first_row = tl.load(tiles + tile * 4).to(tl.int64)
    start = tl.load(tiles + tile * 4 + 2)
    table = tables + tl.load(tiles + tile * 4 + 3).to(tl.int64) * max_pages
    last = start + num_rows - 1
    # Blocks that every row sees whole lie in [whole_begin, whole_end); those around them are masked.
    first_block = tl.maximum(start - window + 1, 0) // N * N
    whole_begin = tl.minimum(tl.maximum(last - window + N, 0) // N * N, last // N * N + N)
    whole_end = tl.maximum((start + 1) // N * N, whole_begin)
    whole_begin = tl.maximum(whole_begin, first_block)
    end, num_parts = last + 1, 1
    if SPLIT:
        length, num_parts = _split_of(num_tiles, first_block, end, TARGET, N, LEAST)
        if part >= num_parts:
            return
        first_block += part * length
        end = tl.minimum(first_block + length, end)
        whole_begin = tl.minimum(tl.maximum(whole_begin, first_block), end)
        whole_end = tl.minimum(tl.maximum(whole_end, first_block), end)
    lanes = tl.arange(0, M)
    dims = tl.arange(0, DIM)
    row, head = lanes // PACK, group * PACK + lanes % PACK
    inside = (row < num_rows)[:, None] & (dims < D)[None, :]
    cells = ((first_row + row) * H + head)[:, None] * D + dims[None, :]
    queries = tl.load(q + cells, mask=inside, other=0.0)
    positions = start + row
    kv_head = (group * PACK // (H // K)).to(tl.int64)
    k_head, v_head = k_pages + kv_head * PAGE * D, v_pages + kv_head * PAGE * D
    acc = tl.zeros([M, DIM], tl.float32)
    total = tl.zeros([M], tl.float32)
    best = tl.full([M], float("-inf"), tl.float32)
    acc, total, best = _attend_blocks(
        acc, total, best, queries, first_block, whole_begin, table, k_head, v_head, positions, last, window, scale,
        K * PAGE * D, PAGE, D, DIM, N, True, PRECISION,
    )  # fmt: skip
    acc, total, best = _attend_blocks(
        acc, total, best, queries, whole_begin, whole_end, table, k_head, v_head, positions, last, window, scale,
        K * PAGE * D, PAGE, D, DIM, N, False, PRECISION,
    )  # fmt: skip
    acc, total, best = _attend_blocks(
        acc, total, best, queries, whole_end, end, table, k_head, v_head, positions, last, window, scale,
        K * PAGE * D, PAGE, D, DIM, N, True, PRECISION,
    )  # fmt: skip
    if SPLIT:  # noqa: SIM102 (known when it is compiled)
        if num_parts > 1:
            place = (group * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
            own = lanes[:, None] * DIM + dims[None, :]
            tl.store(sums + place * M * DIM + own, acc)
            tl.store(stats + place * 2 * M + lanes, best)
            tl.store(stats + place * 2 * M + M + lanes, total)
            tl.debug_barrier()
            arrival = arrivals + group * tl.num_programs(1) + tile
            if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") < num_parts - 1:
                return
            tl.store(arrival, 0)
            acc, total = _merge_parts(sums, stats, own, tile, group, num_tiles, num_parts, M, DIM)
    total = tl.where(total == 0.0, 1.0, total)  # lanes without a row
    tl.store(out + cells, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def gather_kernel(
    table, k_pages, v_pages, k_out, v_out, num_tokens,
    K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Pages of one request -> keys and values [tokens, K, D] in order. Programs (page, key head)."""
    page, head = tl.program_id(0), tl.program_id(1)
    cells, dims = tl.arange(0, PAGE)[:, None], tl.arange(0, DIM)[None, :]
    tokens = page * PAGE + cells
    inside = (tokens < num_tokens) & (dims < D)
    source = ((tl.load(table + page).to(tl.int64) * K + head) * PAGE + cells) * D + dims
    target = (tokens.to(tl.int64) * K + head) * D + dims
    tl.store(k_out + target, tl.load(k_pages + source, mask=inside, other=0.0), mask=inside)
    tl.store(v_out + target, tl.load(v_pages + source, mask=inside, other=0.0), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def merge_kernel(
    out, out_row, out_head, lse, part, part_row, part_head, part_lse, num_rows,
    D: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, HAS_OUT: tl.constexpr,
):  # fmt: skip
    """Join attention over other keys to what `out` and `lse` [H, rows] hold; without HAS_OUT that is nothing yet."""
    rows, head = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    dims = tl.arange(0, DIM)[None, :]
    inside = (rows < num_rows)[:, None] & (dims < D)
    into = out + rows.to(tl.int64)[:, None] * out_row + head * out_head + dims
    values = tl.load(part + rows.to(tl.int64)[:, None] * part_row + head * part_head + dims, mask=inside, other=0.0)
    new = tl.load(part_lse + head * num_rows + rows, mask=rows < num_rows, other=0.0)
    values = values.to(tl.float32)
    if HAS_OUT:
        old = tl.load(lse + head * num_rows + rows, mask=rows < num_rows, other=0.0)
        best = tl.maximum(old, new)
        old_share, new_share = tl.exp(old - best), tl.exp(new - best)
        total = old_share + new_share
        before = tl.load(into, mask=inside, other=0.0).to(tl.float32)
        values = (before * old_share[:, None] + values * new_share[:, None]) / total[:, None]
        new = best + tl.log(total)
    tl.store(lse + head * num_rows + rows, new, mask=rows < num_rows)
    tl.store(into, values.to(out.dtype.element_ty), mask=inside)
