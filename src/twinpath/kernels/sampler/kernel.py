"""The sampler in Triton: adjust, bin, cut twice, draw. Five launches whatever the settings, one when all are greedy.

A row is spread over programs of BLOCK ids. The program that arrives last does what needs the whole row, so no program
ever waits for another. Sums are of integers, so their order cannot change a draw. Weights are computed where they are
needed: that is cheaper than to move them.

The cuts. Ids are ranked by one int64, the adjusted logit's bits above the inverted id, so every rank is distinct. A
histogram over log-probability finds the bins in which a cut lies. When few ids lie in them and above, those are
gathered and the row ends there: both cuts and the draw are comparisons of pairs. Otherwise only the ids near the border
are gathered, and it is found among them: pairwise, or by bisection when they are many (flat or equal logits).
"""

from __future__ import annotations

import triton
import triton.language as tl

from twinpath.kernels.sampler.bins import coarse_bins, find_bin, needed_weight, plan_cut, reach
from twinpath.kernels.sampler.layout import (
    BAD,
    COUNT_SHIFT,
    CUT,
    DONE,
    FLAGS,
    FREQUENCY,
    HAS_BIAS,
    HAS_PENALTIES,
    HAS_STOPS,
    INF,
    INVERSE_TEMPERATURE,
    IS_GREEDY,
    LARGEST,
    LEAST,
    MIN_TOKENS,
    MIN_WEIGHT,
    NUM_FLOATS,
    NUM_INTS,
    NUM_PROMPT,
    NUM_ROW_INTS,
    PRESENCE,
    REPETITION,
    SEED,
    TOP_K,
    TOP_P,
    TOTAL,
    WEIGHT_SHIFT,
)
from twinpath.kernels.sampler.row import bins_of, exponents_of, finish, is_last, random64, ranks, weigh
from twinpath.kernels.tile import await_previous_kernel


@triton.jit
def _round32(value):
    """float64 -> float32, finite values staying finite."""
    clamped = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
    return tl.where(value == -INF, value, clamped).to(tl.float32)


@triton.jit
def _has_bit(words, offsets, inside):
    word = tl.load(words + offsets // 32, mask=inside, other=0)
    return ((word >> (offsets % 32)) & 1) != 0


@triton.jit
def adjust_kernel(
    logits, logits_stride, row_slots, row_positions, row_masks, floats, ints, history, history_stride,
    counts, bias, stops, allowed, adjusted, bins, block_best, block_ids, rows, best, arrivals, tokens, codes,
    vocab_size, num_words,
    NUM_BINS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Adjusted logits and the best of them. Greedy rows and rows that cannot be sampled end here."""
    await_previous_kernel(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    position = tl.load(row_positions + row)
    flags = tl.load(ints + slot * NUM_INTS + FLAGS)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab_size
    x = tl.load(logits + row.to(tl.int64) * logits_stride + offsets, mask=inside, other=-INF)
    is_bad = tl.max(((x != x) | (x == INF)).to(tl.int32), 0)
    if (flags & HAS_BIAS) != 0:
        x = _round32(x.to(tl.float64) + tl.load(bias + slot * vocab_size + offsets, mask=inside, other=0.0))
    if (flags & HAS_PENALTIES) != 0:
        seen = tl.load(counts + slot * vocab_size + offsets, mask=inside, other=0)
        repetition = tl.load(floats + slot * NUM_FLOATS + REPETITION)
        frequency = tl.load(floats + slot * NUM_FLOATS + FREQUENCY)
        presence = tl.load(floats + slot * NUM_FLOATS + PRESENCE)
        wide = x.to(tl.float64)
        x = tl.where(seen != 0, _round32(tl.where(wide > 0, wide / repetition, wide * repetition)), x)
        times = seen >> 1
        x = tl.where(times > 0, _round32(x.to(tl.float64) - frequency * times.to(tl.float64) - presence), x)
    mask = tl.load(row_masks + row)
    if mask >= 0:
        x = tl.where(_has_bit(allowed + mask * num_words, offsets, inside), x, -INF)
    elif (flags & HAS_STOPS) != 0:
        num_output = position - tl.load(ints + slot * NUM_INTS + NUM_PROMPT)
        is_short = num_output < tl.load(ints + slot * NUM_INTS + MIN_TOKENS)
        x = tl.where(_has_bit(stops + slot * num_words, offsets, inside) & is_short, -INF, x)
    x = tl.where(x == 0, 0.0, x)  # minus zero ranks as zero
    tl.store(adjusted + row.to(tl.int64) * vocab_size + offsets, x, mask=inside)
    block_max = tl.max(tl.where(x != x, -INF, x), 0)
    tl.store(block_best + row * BLOCKS + block, block_max)
    tl.store(block_ids + row * BLOCKS + block, tl.min(tl.where(inside & (x == block_max), offsets, vocab_size), 0))
    # The bins of the next launch, emptied here where there is time.
    for first in range(block * BLOCK, NUM_BINS, tl.num_programs(1) * BLOCK):
        cleared = first + tl.arange(0, BLOCK)
        tl.store(bins + row * NUM_BINS + cleared, tl.zeros([BLOCK], tl.int64), mask=cleared < NUM_BINS)
    state = rows + row * NUM_ROW_INTS
    if is_bad != 0:
        tl.atomic_add(state + BAD, 1)
    if is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        lanes = tl.arange(0, triton.next_power_of_2(BLOCKS))
        bests = tl.load(block_best + row * BLOCKS + lanes, mask=lanes < BLOCKS, other=-INF, cache_modifier=".cg")
        ids = tl.load(block_ids + row * BLOCKS + lanes, mask=lanes < BLOCKS, other=vocab_size, cache_modifier=".cg")
        row_best = tl.max(bests, 0)
        token = tl.min(tl.where(bests == row_best, ids, vocab_size), 0)
        bad = tl.atomic_add(state + BAD, 0)
        code = tl.where(bad != 0, 1, tl.where(row_best == -INF, 2, 0))
        tl.store(best + row, row_best)
        columns = tl.arange(0, NUM_ROW_INTS)
        done = (code != 0) | ((flags & IS_GREEDY) != 0)
        fresh = tl.where(columns == DONE, done.to(tl.int64), tl.where(columns == CUT, LEAST, 0))
        tl.debug_barrier()
        tl.store(state + columns, fresh.to(tl.int64))
        if done:
            token = tl.where(code != 0, 0, token)
            finish(row, slot, position, token, code, flags, tokens, codes, history, history_stride, counts, vocab_size)


@triton.jit
def bin_kernel(
    row_slots, floats, ints, adjusted, bins, rows, best, arrivals,
    vocab_size, NUM_BINS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """When something is cut: the histogram of ids and weights, their total, and where the first cut lies."""
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
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab_size
    x = tl.load(adjusted + row.to(tl.int64) * vocab_size + offsets, mask=inside, other=-INF)
    exponents = exponents_of(x, tl.load(best + row), tl.load(floats + slot * NUM_FLOATS + INVERSE_TEMPERATURE))
    weight = tl.where(inside, weigh(exponents), 0)
    word = (weight >> WEIGHT_SHIFT) + (tl.full([BLOCK], 1, tl.int64) << COUNT_SHIFT)
    tl.atomic_add(bins + row * NUM_BINS + bins_of(exponents, NUM_BINS), word, mask=weight > 0, sem="relaxed")
    tl.atomic_add(state + TOTAL, tl.sum(weight, 0), sem="relaxed")
    if is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        bins_row = bins + row * NUM_BINS
        coarse = coarse_bins(bins_row, NUM_BINS)
        if (top_k > 0) & (top_k < reach(tl.sum(coarse, 0), 0)):
            last, reached = find_bin(bins_row, coarse, top_k, 0, NUM_BINS)
            plan_cut(state, 1, last, last, top_k, reached)
        elif top_p < 1.0:
            needed = needed_weight(tl.atomic_add(state + TOTAL, 0), top_p)
            first, _ = find_bin(bins_row, coarse, needed, 2, NUM_BINS)
            last, reached = find_bin(bins_row, coarse, needed, 1, NUM_BINS)
            plan_cut(state, 2, first, last, needed, reached)


@triton.jit
def _kept(adjusted_row, offsets, vocab_size, row_best, inverse_temperature, cut, min_weight):
    """Weights of the ids that remain after every setting, 0 for the others."""
    inside = offsets < vocab_size
    x = tl.load(adjusted_row + offsets, mask=inside, other=-INF)
    weight = weigh(exponents_of(x, row_best, inverse_temperature))
    return tl.where(inside & (ranks(x, offsets) >= cut) & (weight.to(tl.float64) >= min_weight), weight, 0)


@triton.jit
def draw_kernel(
    row_slots, row_positions, floats, ints, history, history_stride, counts,
    adjusted, block_sums, rows, best, arrivals, tokens, codes,
    vocab_size, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The draw: in ascending id order the first whose running weight exceeds u * total."""
    await_previous_kernel(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    state = rows + row * NUM_ROW_INTS
    if tl.load(state + DONE) != 0:
        return
    cut, min_weight = tl.load(state + CUT), tl.load(floats + slot * NUM_FLOATS + MIN_WEIGHT)
    row_best, inverse = tl.load(best + row), tl.load(floats + slot * NUM_FLOATS + INVERSE_TEMPERATURE)
    adjusted_row = adjusted + row.to(tl.int64) * vocab_size
    lanes = tl.arange(0, BLOCK)
    kept = _kept(adjusted_row, block * BLOCK + lanes, vocab_size, row_best, inverse, cut, min_weight)
    tl.store(block_sums + row * BLOCKS + block, tl.sum(kept, 0))
    if is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        position = tl.load(row_positions + row)
        random = random64(tl.load(ints + slot * NUM_INTS + SEED), position)
        blocks = tl.arange(0, triton.next_power_of_2(BLOCKS))
        sums = tl.load(block_sums + row * BLOCKS + blocks, mask=blocks < BLOCKS, other=0, cache_modifier=".cg")
        target = tl.umulhi(random, tl.sum(sums, 0).to(tl.uint64)).to(tl.int64)
        chosen = tl.sum((tl.cumsum(sums, 0) <= target).to(tl.int32), 0)
        left = target - tl.sum(tl.where(blocks < chosen, sums, 0), 0)
        kept = _kept(adjusted_row, chosen * BLOCK + lanes, vocab_size, row_best, inverse, cut, min_weight)
        token = chosen * BLOCK + tl.sum((tl.cumsum(kept, 0) <= left).to(tl.int32), 0)
        flags = tl.load(ints + slot * NUM_INTS + FLAGS)
        finish(row, slot, position, token, 0, flags, tokens, codes, history, history_stride, counts, vocab_size)
