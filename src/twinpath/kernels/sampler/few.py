"""The sampler's short way: when few ids can stay, find them without looking at the distribution as a whole.

A program's ids lie in groups; none below the least of its groups' maxima is gathered. Above the highest of these
borders, over all programs, the gathered ids are complete: there are some hundred, and both cuts usually lie there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twinpath.kernels.sampler.bins import needed_weight
from twinpath.kernels.sampler.cut import draw_of_few
from twinpath.kernels.sampler.layout import (
    BORDER,
    DONE,
    FEW,
    FLAGS,
    GROUPS,
    INF,
    INVERSE_TEMPERATURE,
    LEAST,
    MIN_WEIGHT,
    NUM_CANDIDATES,
    NUM_FLOATS,
    NUM_INTS,
    NUM_ROW_INTS,
    SEED,
    TOP_K,
    TOP_P,
    TOTAL,
)
from twinpath.kernels.sampler.row import exponents_of, finish, is_last, random64, ranks, weigh, weights_of_ranks
from twinpath.kernels.tile import await_previous_kernel


@triton.jit
def few_kernel(
    row_slots, row_positions, floats, ints, history, history_stride, counts,
    adjusted, candidates, candidates_stride, rows, best, arrivals, tokens, codes,
    vocab_size, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Gather the ids above each program's border; end the row when those above the highest border decide it."""
    await_previous_kernel(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    state = rows + row * NUM_ROW_INTS
    top_k = tl.load(ints + slot * NUM_INTS + TOP_K)
    top_p = tl.load(floats + slot * NUM_FLOATS + TOP_P)
    if (tl.load(state + DONE) != 0) | ((top_k <= 0) & (top_p >= 1.0)):
        return
    row_best, inverse = tl.load(best + row), tl.load(floats + slot * NUM_FLOATS + INVERSE_TEMPERATURE)
    candidates_row = candidates + row.to(tl.int64) * candidates_stride
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab_size
    x = tl.load(adjusted + row.to(tl.int64) * vocab_size + offsets, mask=inside, other=-INF)
    weight = tl.where(inside, weigh(exponents_of(x, row_best, inverse)), 0)
    rank = tl.where(weight > 0, ranks(x, offsets), LEAST)
    # A group without any id does not count.
    group_best = tl.max(tl.reshape(tl.where(inside, rank, LEAST), [GROUPS, BLOCK // GROUPS]), 1)
    group_has = tl.max(tl.reshape(inside.to(tl.int32), [GROUPS, BLOCK // GROUPS]), 1)
    border = tl.min(tl.where(group_has > 0, group_best, -LEAST), 0)
    near = (weight > 0) & (rank >= border)
    num_near = tl.sum(near.to(tl.int32), 0)
    tl.atomic_max(state + BORDER, border, sem="relaxed")
    tl.atomic_add(state + TOTAL, tl.sum(weight, 0), sem="relaxed")
    if num_near > 0:
        begin = tl.atomic_add(state + NUM_CANDIDATES, num_near.to(tl.int64), sem="relaxed")
        tl.store(candidates_row + begin + tl.cumsum(near.to(tl.int32), 0) - 1, rank, mask=near)
    if is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        num = tl.atomic_add(state + NUM_CANDIDATES, 0).to(tl.int32)
        lowest, total = tl.atomic_max(state + BORDER, LEAST), tl.atomic_add(state + TOTAL, 0)
        tl.debug_barrier()
        tl.store(state + NUM_CANDIDATES, 0)
        tl.store(state + TOTAL, 0)
        if num <= BLOCK:
            lanes = tl.arange(0, BLOCK)
            rank = tl.load(candidates_row + lanes, mask=lanes < num, other=LEAST, cache_modifier=".cg")
            rank = tl.where(rank >= lowest, rank, LEAST)
            weight = tl.where(rank > LEAST, weights_of_ranks(rank, row_best, inverse), 0)
            measure = tl.where(top_k > 0, 1, 2)
            value = tl.where(measure == 1, (rank > LEAST).to(tl.int64), weight)
            needed_by_p = needed_weight(total, top_p)
            needed = tl.where(measure == 1, top_k, needed_by_p)
            low, high = tl.min(tl.where(rank > LEAST, rank, -LEAST), 0), tl.max(rank, 0) + 1
            num = tl.sum((rank > LEAST).to(tl.int32), 0)
            if tl.sum(value, 0) >= needed:
                while (num > FEW) & (high - low > 1):
                    middle = low + ((high - low) >> 1)
                    is_enough = tl.sum(tl.where(rank >= middle, value, 0), 0) >= needed
                    low = tl.where(is_enough, middle, low)
                    high = tl.where(is_enough, high, middle)
                    num = tl.sum((rank >= low).to(tl.int32), 0)
                if num <= FEW:
                    chosen = rank >= low
                    scratch = candidates_row + vocab_size
                    tl.store(scratch + FEW + tl.cumsum(chosen.to(tl.int32), 0) - 1, rank, mask=chosen)
                    tl.debug_barrier()
                    position = tl.load(row_positions + row)
                    random = random64(tl.load(ints + slot * NUM_INTS + SEED), position)
                    min_weight = tl.load(floats + slot * NUM_FLOATS + MIN_WEIGHT)
                    token = draw_of_few(
                        scratch + FEW, scratch, num, row_best, inverse, measure, needed_by_p, top_k, top_p,
                        min_weight, random,
                    )  # fmt: skip
                    flags = tl.load(ints + slot * NUM_INTS + FLAGS)
                    finish(
                        row, slot, position, token, 0, flags, tokens, codes, history, history_stride, counts, vocab_size
                    )
                    tl.store(state + DONE, 1)
