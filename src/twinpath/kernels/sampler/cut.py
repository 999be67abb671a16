"""The sampler's cuts: the border of top_k or top_p among gathered ids, or the whole rest of a row when they are few."""

from __future__ import annotations

import triton
import triton.language as tl

from twinpath.kernels.sampler.bins import coarse_bins, find_bin, needed_weight, plan_cut
from twinpath.kernels.sampler.layout import (
    ABOVE,
    ABOVE_WEIGHT,
    CUT,
    DONE,
    FEW,
    FIRST_BIN,
    FLAGS,
    ID_MASK,
    INF,
    INVERSE_TEMPERATURE,
    IS_WHOLE,
    LAST_BIN,
    LEAST,
    MEASURE,
    MIN_WEIGHT,
    NUM_CANDIDATES,
    NUM_FLOATS,
    NUM_INTS,
    NUM_ROW_INTS,
    PAIR_COUNT_SHIFT,
    REMAINING,
    SEED,
    TOP_K,
    TOP_P,
)
from twinpath.kernels.sampler.row import (
    bins_of,
    exponents_of,
    finish,
    is_last,
    random64,
    ranks,
    weigh,
    weights_of_ranks,
)
from twinpath.kernels.tile import await_previous_kernel


@triton.jit
def _measured(candidates, first, num, row_best, inverse_temperature, measure, SIZE: tl.constexpr):
    """SIZE candidates from `first` on: their ranks, what the cut counts of each, and their weights."""
    lanes = first + tl.arange(0, SIZE)
    inside = lanes < num
    rank = tl.load(candidates + lanes, mask=inside, other=LEAST, cache_modifier=".cg")
    weight = tl.where(inside, weights_of_ranks(rank, row_best, inverse_temperature), 0)
    return rank, tl.where(measure == 1, inside.to(tl.int64), weight), weight


@triton.jit
def _sum_before(candidates, values, num, rank):
    """For each of `rank`: the sum of values[j] over the candidates that rank before it."""
    before = tl.zeros([FEW], tl.int64)
    for part in range(0, num, 32):
        lanes = part + tl.arange(0, 32)
        other = tl.load(candidates + lanes, mask=lanes < num, other=LEAST, cache_modifier=".cg")
        value = tl.load(values + lanes, mask=lanes < num, other=0)
        before += tl.sum(tl.where(other[None, :] > rank[:, None], value[None, :], 0), 1)
    return before


@triton.jit
def _border_of_few(candidates, scratch, num, row_best, inverse_temperature, measure, remaining):
    """The lowest rank that stays, and the weight of those that stay: each is kept while less than `remaining` ranks
    before it."""
    rank, value, weight = _measured(candidates, 0, num, row_best, inverse_temperature, measure, FEW)
    lanes = tl.arange(0, FEW)
    tl.store(scratch + lanes, value)
    tl.debug_barrier()
    kept = (lanes < num) & (_sum_before(candidates, scratch, num, rank) < remaining)
    return tl.min(tl.where(kept, rank, 1 << 62), 0), tl.sum(tl.where(kept, weight, 0), 0)


@triton.jit
def _border_of_many(candidates, num, row_best, inverse_temperature, measure, remaining, SIZE: tl.constexpr):
    """As `_border_of_few`, by bisection over ranks: the highest border at or above which `remaining` is reached."""
    low = tl.full([], 1 << 62, tl.int64)
    high = tl.full([], LEAST, tl.int64)
    for first in range(0, num, SIZE):
        lanes = first + tl.arange(0, SIZE)
        rank = tl.load(candidates + lanes, mask=lanes < num, other=LEAST, cache_modifier=".cg")
        high = tl.maximum(high, tl.max(rank, 0))
        low = tl.minimum(low, tl.min(tl.where(lanes < num, rank, 1 << 62), 0))
    high += 1
    while high - low > 1:
        middle = low + ((high - low) >> 1)
        reached = tl.zeros([], tl.int64)
        for first in range(0, num, SIZE):
            rank, value, _ = _measured(candidates, first, num, row_best, inverse_temperature, measure, SIZE)
            reached += tl.sum(tl.where(rank >= middle, value, 0), 0)
        is_enough = reached >= remaining
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    kept = tl.zeros([], tl.int64)
    for first in range(0, num, SIZE):
        rank, _, weight = _measured(candidates, first, num, row_best, inverse_temperature, measure, SIZE)
        kept += tl.sum(tl.where(rank >= low, weight, 0), 0)
    return low, kept


@triton.jit
def draw_of_few(
    candidates, scratch, num, row_best, inverse_temperature, measure, remaining, top_k, top_p, min_weight, random
):  # fmt: skip
    """Both cuts, min_p and the draw among all ids that may stay."""
    lanes = tl.arange(0, FEW)
    rank, _, weight = _measured(candidates, 0, num, row_best, inverse_temperature, 2, FEW)
    tl.store(scratch + lanes, weight + (tl.full([FEW], 1, tl.int64) << PAIR_COUNT_SHIFT))
    tl.debug_barrier()
    before = _sum_before(candidates, scratch, num, rank)
    count_before = before >> PAIR_COUNT_SHIFT
    kept = (lanes < num) & (count_before < tl.where(top_k > 0, top_k, FEW))
    # Without top_k the total is that of all ids, which `remaining` was computed from.
    needed = needed_weight(tl.sum(tl.where(kept, weight, 0), 0), top_p)
    needed = tl.where(measure == 1, needed, remaining)
    kept = kept & (before - (count_before << PAIR_COUNT_SHIFT) < tl.where(top_p < 1.0, needed, 1 << 62))
    weight = tl.where(kept & (weight.to(tl.float64) >= min_weight), weight, 0)
    tl.debug_barrier()
    tl.store(scratch + lanes, weight)
    tl.debug_barrier()
    # In ascending id order: what comes before an id has more in the rank's low bits.
    ids = rank & ID_MASK
    running = weight
    for part in range(0, num, 32):
        others = part + tl.arange(0, 32)
        other = tl.load(candidates + others, mask=others < num, other=LEAST, cache_modifier=".cg") & ID_MASK
        value = tl.load(scratch + others, mask=others < num, other=0)
        running += tl.sum(tl.where(other[None, :] > ids[:, None], value[None, :], 0), 1)
    target = tl.umulhi(random, tl.sum(weight, 0).to(tl.uint64)).to(tl.int64)
    return tl.max(tl.where((weight > 0) & (running > target), ids, 0), 0).to(tl.int32) ^ ID_MASK


@triton.jit
def cut_kernel(
    row_slots, row_positions, floats, ints, history, history_stride, counts,
    adjusted, candidates, candidates_stride, bins, rows, best, arrivals, tokens, codes,
    vocab_size, NUM_BINS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One cut: gather the ids of the bins where the border lies, find it. Launched twice: top_k, then top_p."""
    await_previous_kernel(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    state = rows + row * NUM_ROW_INTS
    measure = tl.load(state + MEASURE)
    if (tl.load(state + DONE) != 0) | (measure == 0):
        return
    first_bin, last_bin = tl.load(state + FIRST_BIN), tl.load(state + LAST_BIN)
    row_best, inverse = tl.load(best + row), tl.load(floats + slot * NUM_FLOATS + INVERSE_TEMPERATURE)
    is_whole = tl.load(state + IS_WHOLE) != 0
    candidates_row = candidates + row.to(tl.int64) * candidates_stride
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab_size
    x = tl.load(adjusted + row.to(tl.int64) * vocab_size + offsets, mask=inside, other=-INF)
    exponents = exponents_of(x, row_best, inverse)
    weight = tl.where(inside, weigh(exponents), 0)
    lanes = bins_of(exponents, NUM_BINS)
    rank = ranks(x, offsets)
    alive = (weight > 0) & (rank >= tl.load(state + CUT))
    if not is_whole:
        above = alive & (lanes < first_bin)
        tl.atomic_add(state + ABOVE, tl.sum(above.to(tl.int64), 0), sem="relaxed")
        tl.atomic_add(state + ABOVE_WEIGHT, tl.sum(tl.where(above, weight, 0), 0), sem="relaxed")
    near = alive & (lanes >= first_bin) & (lanes <= last_bin)
    num_near = tl.sum(near.to(tl.int32), 0)
    if num_near > 0:
        begin = tl.atomic_add(state + NUM_CANDIDATES, num_near.to(tl.int64), sem="relaxed")
        tl.store(candidates_row + begin + tl.cumsum(near.to(tl.int32), 0) - 1, rank, mask=near)
    if is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        num = tl.atomic_add(state + NUM_CANDIDATES, 0).to(tl.int32)
        top_k, top_p = tl.load(ints + slot * NUM_INTS + TOP_K), tl.load(floats + slot * NUM_FLOATS + TOP_P)
        scratch, planned = candidates_row + vocab_size, tl.load(state + REMAINING)
        if is_whole:
            position = tl.load(row_positions + row)
            random = random64(tl.load(ints + slot * NUM_INTS + SEED), position)
            min_weight = tl.load(floats + slot * NUM_FLOATS + MIN_WEIGHT)
            token = draw_of_few(
                candidates_row, scratch, num, row_best, inverse, measure, planned, top_k, top_p, min_weight, random
            )  # fmt: skip
            flags = tl.load(ints + slot * NUM_INTS + FLAGS)
            finish(row, slot, position, token, 0, flags, tokens, codes, history, history_stride, counts, vocab_size)
            tl.store(state + DONE, 1)
        else:
            num_above, above_weight = tl.atomic_add(state + ABOVE, 0), tl.atomic_add(state + ABOVE_WEIGHT, 0)
            remaining = planned - tl.where(measure == 1, num_above, above_weight)
            if num <= FEW:
                border, kept = _border_of_few(candidates_row, scratch, num, row_best, inverse, measure, remaining)
            else:
                border, kept = _border_of_many(candidates_row, num, row_best, inverse, measure, remaining, BLOCK)
            tl.store(state + CUT, border)
            tl.store(state + MEASURE, 0)
            if (measure == 1) & (top_p < 1.0):
                needed = needed_weight(above_weight + kept, top_p)
                bins_row = bins + row * NUM_BINS
                coarse = coarse_bins(bins_row, NUM_BINS)
                first, _ = find_bin(bins_row, coarse, needed, 2, NUM_BINS)
                last, reached = find_bin(bins_row, coarse, needed, 1, NUM_BINS)
                plan_cut(state, 2, first, last, needed, reached)
        tl.debug_barrier()
        tl.store(state + NUM_CANDIDATES, 0)
        tl.store(state + ABOVE, 0)
        tl.store(state + ABOVE_WEIGHT, 0)
