"""The sampler in Triton: adjust, weigh, cut twice, draw. Five launches whatever the settings, one when all are greedy.

A row is spread over programs of BLOCK ids. The program that arrives last does what needs the whole row, so no program
ever waits for another. Sums are of integers, so their order cannot change a draw.

The cuts. Ids are ranked by one int64, the adjusted logit's bits above the inverted id, so every rank is distinct. A
histogram over log-probability finds the bins in which a cut lies; their ids are gathered and the border is found among
them: pairwise when they are few, by bisection when they are many (flat or equal logits).
"""

from __future__ import annotations

import triton
import triton.language as tl

_INF = tl.constexpr(float("inf"))
_LARGEST = tl.constexpr(3.4028234663852886e38)
_LOG2_E = tl.constexpr(float.fromhex("0x1.71547652b82fep+0"))
_LN2_HIGH = tl.constexpr(float.fromhex("0x1.62e42fee00000p-1"))
_LN2_LOW = tl.constexpr(float.fromhex("0x1.a39ef35793c76p-33"))
#: Adding and subtracting it rounds a small float64 to an integer, ties to even.
_ROUNDER = tl.constexpr(6755399441055744.0)
#: A bin's word: how many ids above, the sum of their weights / 2**8 below. Holds 2**18 ids.
_COUNT_SHIFT = tl.constexpr(44)
_SUM_MASK = tl.constexpr((1 << 44) - 1)
_WEIGHT_SHIFT = tl.constexpr(8)
_BIN_SPAN = tl.constexpr(24.5)
_ID_BITS = tl.constexpr(20)
_ID_MASK = tl.constexpr((1 << 20) - 1)
_FEW = tl.constexpr(256)
_LEAST = tl.constexpr(-(1 << 62))

# Columns; see spec.py (a kernel reads only constants of its own module).
_INVERSE_TEMPERATURE = tl.constexpr(0)
_TOP_P = tl.constexpr(1)
_MIN_WEIGHT = tl.constexpr(2)
_REPETITION = tl.constexpr(3)
_FREQUENCY = tl.constexpr(4)
_PRESENCE = tl.constexpr(5)
_NUM_FLOATS = tl.constexpr(6)
_SEED = tl.constexpr(0)
_TOP_K = tl.constexpr(1)
_NUM_PROMPT = tl.constexpr(2)
_MIN_TOKENS = tl.constexpr(3)
_FLAGS = tl.constexpr(4)
_NUM_INTS = tl.constexpr(5)
_HAS_PENALTIES = tl.constexpr(1)
_HAS_BIAS = tl.constexpr(2)
_HAS_STOPS = tl.constexpr(4)
_IS_GREEDY = tl.constexpr(8)
# Workspace.rows
_NUM_ROW_INTS = tl.constexpr(16)
_DONE = tl.constexpr(0)
_TOTAL = tl.constexpr(1)
_CUT = tl.constexpr(2)
_FIRST_BIN = tl.constexpr(3)
_LAST_BIN = tl.constexpr(4)
_REMAINING = tl.constexpr(5)
_NUM_CANDIDATES = tl.constexpr(6)
_ABOVE = tl.constexpr(7)
_ABOVE_WEIGHT = tl.constexpr(8)
_BAD = tl.constexpr(9)
#: What each cut measures: 0 nothing (no cut), 1 ids, 2 weight.
_MEASURE = tl.constexpr(10)


@triton.jit
def _round32(value):
    """float64 -> float32, finite values staying finite."""
    clamped = tl.minimum(tl.maximum(value, -_LARGEST), _LARGEST)
    return tl.where(value == -_INF, value, clamped).to(tl.float32)


@triton.jit
def _has_bit(words, offsets, inside):
    word = tl.load(words + offsets // 32, mask=inside, other=0)
    return ((word >> (offsets % 32)) & 1) != 0


@triton.jit
def _is_last(arrivals, row):
    """Whether this program is the row's last to arrive; then what the others wrote before is visible to it."""
    tl.debug_barrier()
    last = tl.atomic_add(arrivals + row, 1) == tl.num_programs(1) - 1
    tl.debug_barrier()
    return last


@triton.jit
def _finish(row, slot, position, token, code, flags, tokens, codes, history, history_stride, counts, vocab_size):
    """The row's token goes to the results, to the slot's history and into its counts."""
    tl.store(tokens + row, token)
    tl.store(codes + row, code)
    tl.store(history + slot * history_stride + position, token)
    if (flags & _HAS_PENALTIES) != 0:
        counted = counts + slot * vocab_size + token
        tl.store(counted, tl.load(counted) + 2)


@triton.jit
def adjust_kernel(
    logits, logits_stride, row_slots, row_positions, row_masks, floats, ints, history, history_stride,
    counts, bias, stops, allowed, adjusted, bins, block_best, block_ids, rows, best, arrivals, tokens, codes,
    vocab_size, num_words, NUM_BINS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Adjusted logits and the best of them. Greedy rows and rows that cannot be sampled end here."""
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    position = tl.load(row_positions + row)
    flags = tl.load(ints + slot * _NUM_INTS + _FLAGS)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab_size
    x = tl.load(logits + row.to(tl.int64) * logits_stride + offsets, mask=inside, other=-_INF)
    is_bad = tl.max(((x != x) | (x == _INF)).to(tl.int32), 0)
    if (flags & _HAS_BIAS) != 0:
        x = _round32(x.to(tl.float64) + tl.load(bias + slot * vocab_size + offsets, mask=inside, other=0.0))
    if (flags & _HAS_PENALTIES) != 0:
        seen = tl.load(counts + slot * vocab_size + offsets, mask=inside, other=0)
        repetition = tl.load(floats + slot * _NUM_FLOATS + _REPETITION)
        frequency = tl.load(floats + slot * _NUM_FLOATS + _FREQUENCY)
        presence = tl.load(floats + slot * _NUM_FLOATS + _PRESENCE)
        wide = x.to(tl.float64)
        x = tl.where(seen != 0, _round32(tl.where(wide > 0, wide / repetition, wide * repetition)), x)
        times = seen >> 1
        x = tl.where(times > 0, _round32(x.to(tl.float64) - frequency * times.to(tl.float64) - presence), x)
    mask = tl.load(row_masks + row)
    if mask >= 0:
        x = tl.where(_has_bit(allowed + mask * num_words, offsets, inside), x, -_INF)
    elif (flags & _HAS_STOPS) != 0:
        num_output = position - tl.load(ints + slot * _NUM_INTS + _NUM_PROMPT)
        is_short = num_output < tl.load(ints + slot * _NUM_INTS + _MIN_TOKENS)
        x = tl.where(_has_bit(stops + slot * num_words, offsets, inside) & is_short, -_INF, x)
    x = tl.where(x == 0, 0.0, x)  # minus zero ranks as zero
    tl.store(adjusted + row.to(tl.int64) * vocab_size + offsets, x, mask=inside)
    block_max = tl.max(tl.where(x != x, -_INF, x), 0)
    tl.store(block_best + row * BLOCKS + block, block_max)
    tl.store(block_ids + row * BLOCKS + block, tl.min(tl.where(inside & (x == block_max), offsets, vocab_size), 0))
    # The bins of the next launch, emptied here where there is time.
    for first in range(block * BLOCK, NUM_BINS, tl.num_programs(1) * BLOCK):
        cleared = first + tl.arange(0, BLOCK)
        tl.store(bins + row * NUM_BINS + cleared, tl.zeros([BLOCK], tl.int64), mask=cleared < NUM_BINS)
    state = rows + row * _NUM_ROW_INTS
    if is_bad != 0:
        tl.atomic_add(state + _BAD, 1)
    if _is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        lanes = tl.arange(0, triton.next_power_of_2(BLOCKS))
        bests = tl.load(block_best + row * BLOCKS + lanes, mask=lanes < BLOCKS, other=-_INF, cache_modifier=".cg")
        ids = tl.load(block_ids + row * BLOCKS + lanes, mask=lanes < BLOCKS, other=vocab_size, cache_modifier=".cg")
        row_best = tl.max(bests, 0)
        token = tl.min(tl.where(bests == row_best, ids, vocab_size), 0)
        bad = tl.atomic_add(state + _BAD, 0)
        code = tl.where(bad != 0, 1, tl.where(row_best == -_INF, 2, 0))
        tl.store(best + row, row_best)
        columns = tl.arange(0, _NUM_ROW_INTS)
        done = (code != 0) | ((flags & _IS_GREEDY) != 0)
        fresh = tl.where(columns == _DONE, done.to(tl.int64), tl.where(columns == _CUT, _LEAST, 0))
        tl.debug_barrier()
        tl.store(state + columns, fresh.to(tl.int64))
        if done:
            token = tl.where(code != 0, 0, token)
            _finish(row, slot, position, token, code, flags, tokens, codes, history, history_stride, counts, vocab_size)


@triton.jit
def _weigh(exponents):
    """rint(2**34 * exp(x)) for -64 <= x <= 0, operation by operation as `sampling.reference.fixed_exp`."""
    powers = (exponents * _LOG2_E + _ROUNDER) - _ROUNDER
    r = (exponents - powers * _LN2_HIGH) - powers * _LN2_LOW
    series = r * 2.755731922398589e-07 + 2.7557319223985893e-06
    series = series * r + 2.48015873015873e-05
    series = series * r + 0.0001984126984126984
    series = series * r + 0.001388888888888889
    series = series * r + 0.008333333333333333
    series = series * r + 0.041666666666666664
    series = series * r + 0.16666666666666666
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    scale = ((powers.to(tl.int64) + (34 + 1023)) << 52).to(tl.float64, bitcast=True)
    return ((series * scale + _ROUNDER) - _ROUNDER).to(tl.int64)


@triton.jit
def _exponents(x, row_best, inverse_temperature):
    return tl.maximum((x.to(tl.float64) - row_best.to(tl.float64)) * inverse_temperature, -64.0)


@triton.jit
def _bins_of(exponents, NUM_BINS: tl.constexpr):
    """Bin 0 holds the likeliest; equal logits share a bin, and a higher logit never lies in a later one."""
    return tl.minimum((-exponents * (NUM_BINS / _BIN_SPAN)).to(tl.int32), NUM_BINS - 1)


@triton.jit
def _ranks(x, ids):
    """One int64 per id, distinct: by logit, then by lower id."""
    bits = x.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << _ID_BITS) | (ids ^ _ID_MASK).to(tl.int64)


@triton.jit
def _plan_weight_cut(state, total, top_p, counted, summed, NUM_BINS: tl.constexpr):
    """Which bins may hold the border of top_p, from sums that are short by less than 2**8 for each id."""
    wanted = top_p * total.to(tl.float64)
    needed = wanted.to(tl.int64)
    needed = tl.maximum(needed + (needed.to(tl.float64) < wanted).to(tl.int64), 1)
    lanes = tl.arange(0, NUM_BINS)
    least = summed << _WEIGHT_SHIFT
    most = least + (counted << _WEIGHT_SHIFT)
    tl.store(state + _FIRST_BIN, tl.min(tl.where(most >= needed, lanes, NUM_BINS - 1), 0).to(tl.int64))
    tl.store(state + _LAST_BIN, tl.min(tl.where(least >= needed, lanes, NUM_BINS - 1), 0).to(tl.int64))
    tl.store(state + _REMAINING, needed)


@triton.jit
def weigh_kernel(
    row_slots, floats, ints, adjusted, weights, bins, rows, best, arrivals,
    vocab_size, NUM_BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights, their total and, when something is cut, their histogram; then where the first cut lies."""
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    state = rows + row * _NUM_ROW_INTS
    if tl.load(state + _DONE) != 0:
        return
    top_k = tl.load(ints + slot * _NUM_INTS + _TOP_K)
    top_p = tl.load(floats + slot * _NUM_FLOATS + _TOP_P)
    is_cut = (top_k > 0) | (top_p < 1.0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab_size
    x = tl.load(adjusted + row.to(tl.int64) * vocab_size + offsets, mask=inside, other=-_INF)
    exponents = _exponents(x, tl.load(best + row), tl.load(floats + slot * _NUM_FLOATS + _INVERSE_TEMPERATURE))
    weight = tl.where(inside, _weigh(exponents), 0)
    tl.store(weights + row.to(tl.int64) * vocab_size + offsets, weight, mask=inside)
    if is_cut:
        word = (weight >> _WEIGHT_SHIFT) + (tl.full([BLOCK], 1, tl.int64) << _COUNT_SHIFT)
        tl.atomic_add(bins + row * NUM_BINS + _bins_of(exponents, NUM_BINS), word, mask=weight > 0, sem="relaxed")
        tl.atomic_add(state + _TOTAL, tl.sum(weight, 0), sem="relaxed")
        if _is_last(arrivals, row):
            tl.store(arrivals + row, 0)
            words = tl.load(bins + row * NUM_BINS + tl.arange(0, NUM_BINS), cache_modifier=".cg")
            counted = tl.cumsum(words >> _COUNT_SHIFT, 0)
            if (top_k > 0) & (top_k < tl.max(counted, 0)):
                lane = tl.min(tl.where(counted >= top_k, tl.arange(0, NUM_BINS), NUM_BINS - 1), 0).to(tl.int64)
                tl.store(state + _FIRST_BIN, lane)
                tl.store(state + _LAST_BIN, lane)
                tl.store(state + _REMAINING, top_k)
                tl.store(state + _MEASURE, 1)
            elif top_p < 1.0:
                summed = tl.cumsum(words & _SUM_MASK, 0)
                total = tl.atomic_add(state + _TOTAL, 0)
                _plan_weight_cut(state, total, top_p, counted, summed, NUM_BINS)
                tl.store(state + _MEASURE, 2)


@triton.jit
def _measured(candidates, first, num, weights_row, measure, SIZE: tl.constexpr):
    """SIZE candidates from `first` on: their ranks, what the cut counts of each, and their weights."""
    lanes = first + tl.arange(0, SIZE)
    rank = tl.load(candidates + lanes, mask=lanes < num, other=_LEAST, cache_modifier=".cg")
    weight = tl.load(weights_row + ((rank & _ID_MASK) ^ _ID_MASK), mask=lanes < num, other=0)
    return rank, tl.where(measure == 1, (lanes < num).to(tl.int64), weight), weight


@triton.jit
def _border_of_few(candidates, num, weights_row, measure, remaining):
    """The lowest rank that stays, and the weight of those that stay: each is kept while less than `remaining` ranks
    before it."""
    rank, _, weight = _measured(candidates, 0, num, weights_row, measure, _FEW)
    before = tl.zeros([_FEW], tl.int64)
    for part in tl.static_range(0, _FEW, 32):
        other, value, _ = _measured(candidates, part, num, weights_row, measure, 32)
        before += tl.sum(tl.where(other[None, :] > rank[:, None], value[None, :], 0), 1)
    kept = (tl.arange(0, _FEW) < num) & (before < remaining)
    return tl.min(tl.where(kept, rank, 1 << 62), 0), tl.sum(tl.where(kept, weight, 0), 0)


@triton.jit
def _border_of_many(candidates, num, weights_row, measure, remaining, SIZE: tl.constexpr):
    """As `_border_of_few`, by bisection over ranks: the highest border at or above which `remaining` is reached."""
    low = tl.full([], 1 << 62, tl.int64)
    high = tl.full([], _LEAST, tl.int64)
    for first in range(0, num, SIZE):
        lanes = first + tl.arange(0, SIZE)
        rank = tl.load(candidates + lanes, mask=lanes < num, other=_LEAST, cache_modifier=".cg")
        high = tl.maximum(high, tl.max(rank, 0))
        low = tl.minimum(low, tl.min(tl.where(lanes < num, rank, 1 << 62), 0))
    high += 1
    while high - low > 1:
        middle = low + ((high - low) >> 1)
        reached = tl.zeros([], tl.int64)
        for first in range(0, num, SIZE):
            rank, value, _ = _measured(candidates, first, num, weights_row, measure, SIZE)
            reached += tl.sum(tl.where(rank >= middle, value, 0), 0)
        is_enough = reached >= remaining
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    kept = tl.zeros([], tl.int64)
    for first in range(0, num, SIZE):
        rank, _, weight = _measured(candidates, first, num, weights_row, measure, SIZE)
        kept += tl.sum(tl.where(rank >= low, weight, 0), 0)
    return low, kept


@triton.jit
def cut_kernel(
    row_slots, floats, adjusted, weights, candidates, bins, rows, best, arrivals,
    vocab_size, NUM_BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One cut: gather the ids of the bins where the border lies, find it. Launched twice: top_k, then top_p."""
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    state = rows + row * _NUM_ROW_INTS
    if tl.load(state + _DONE) != 0:
        return
    measure = tl.load(state + _MEASURE)
    if measure == 0:
        return
    first_bin, last_bin = tl.load(state + _FIRST_BIN), tl.load(state + _LAST_BIN)
    weights_row = weights + row.to(tl.int64) * vocab_size
    candidates_row = candidates + row.to(tl.int64) * vocab_size
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab_size
    x = tl.load(adjusted + row.to(tl.int64) * vocab_size + offsets, mask=inside, other=-_INF)
    weight = tl.load(weights_row + offsets, mask=inside, other=0)
    lanes = _bins_of(
        _exponents(x, tl.load(best + row), tl.load(floats + slot * _NUM_FLOATS + _INVERSE_TEMPERATURE)), NUM_BINS
    )
    rank = _ranks(x, offsets)
    alive = (weight > 0) & (rank >= tl.load(state + _CUT))
    above = alive & (lanes < first_bin)
    tl.atomic_add(state + _ABOVE, tl.sum(above.to(tl.int64), 0), sem="relaxed")
    tl.atomic_add(state + _ABOVE_WEIGHT, tl.sum(tl.where(above, weight, 0), 0), sem="relaxed")
    near = alive & (lanes >= first_bin) & (lanes <= last_bin)
    num_near = tl.sum(near.to(tl.int32), 0)
    if num_near > 0:
        begin = tl.atomic_add(state + _NUM_CANDIDATES, num_near.to(tl.int64), sem="relaxed")
        tl.store(candidates_row + begin + tl.cumsum(near.to(tl.int32), 0) - 1, rank, mask=near)
    if _is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        num = tl.atomic_add(state + _NUM_CANDIDATES, 0).to(tl.int32)
        num_above, above_weight = tl.atomic_add(state + _ABOVE, 0), tl.atomic_add(state + _ABOVE_WEIGHT, 0)
        remaining = tl.load(state + _REMAINING) - tl.where(measure == 1, num_above, above_weight)
        if num <= _FEW:
            border, kept_weight = _border_of_few(candidates_row, num, weights_row, measure, remaining)
        else:
            border, kept_weight = _border_of_many(candidates_row, num, weights_row, measure, remaining, BLOCK)
        tl.store(state + _CUT, border)
        tl.store(state + _NUM_CANDIDATES, 0)
        tl.store(state + _ABOVE, 0)
        tl.store(state + _ABOVE_WEIGHT, 0)
        top_p = tl.load(floats + slot * _NUM_FLOATS + _TOP_P)
        if (measure == 1) & (top_p < 1.0):
            words = tl.load(bins + row * NUM_BINS + tl.arange(0, NUM_BINS))
            counted = tl.cumsum(words >> _COUNT_SHIFT, 0)
            summed = tl.cumsum(words & _SUM_MASK, 0)
            _plan_weight_cut(state, above_weight + kept_weight, top_p, counted, summed, NUM_BINS)
            tl.store(state + _MEASURE, 2)
        else:
            tl.store(state + _MEASURE, 0)


@triton.jit
def _kept(adjusted_row, weights_row, offsets, vocab_size, cut, min_weight):
    """Weights of the ids that remain after every setting, 0 for the others."""
    inside = offsets < vocab_size
    x = tl.load(adjusted_row + offsets, mask=inside, other=-_INF)
    weight = tl.load(weights_row + offsets, mask=inside, other=0)
    return tl.where(inside & (_ranks(x, offsets) >= cut) & (weight.to(tl.float64) >= min_weight), weight, 0)


@triton.jit
def draw_kernel(
    row_slots, row_positions, floats, ints, history, history_stride, counts,
    adjusted, weights, block_sums, rows, arrivals, tokens, codes,
    vocab_size, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The draw: in ascending id order the first whose running weight exceeds u * total."""
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    state = rows + row * _NUM_ROW_INTS
    if tl.load(state + _DONE) != 0:
        return
    cut, min_weight = tl.load(state + _CUT), tl.load(floats + slot * _NUM_FLOATS + _MIN_WEIGHT)
    adjusted_row, weights_row = adjusted + row.to(tl.int64) * vocab_size, weights + row.to(tl.int64) * vocab_size
    kept = _kept(adjusted_row, weights_row, block * BLOCK + tl.arange(0, BLOCK), vocab_size, cut, min_weight)
    tl.store(block_sums + row * BLOCKS + block, tl.sum(kept, 0))
    if _is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        position = tl.load(row_positions + row)
        seed = tl.load(ints + slot * _NUM_INTS + _SEED)
        counter = position.to(tl.uint32)
        nothing = counter * 0
        low, high, _, _ = tl.philox(seed.to(tl.uint64), counter, nothing, nothing, nothing)
        random = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
        lanes = tl.arange(0, triton.next_power_of_2(BLOCKS))
        sums = tl.load(block_sums + row * BLOCKS + lanes, mask=lanes < BLOCKS, other=0, cache_modifier=".cg")
        running = tl.cumsum(sums, 0)
        target = tl.umulhi(random, tl.sum(sums, 0).to(tl.uint64)).to(tl.int64)
        chosen = tl.sum((running <= target).to(tl.int32), 0)
        left = target - tl.sum(tl.where(lanes < chosen, sums, 0), 0)
        kept = _kept(adjusted_row, weights_row, chosen * BLOCK + tl.arange(0, BLOCK), vocab_size, cut, min_weight)
        token = chosen * BLOCK + tl.sum((tl.cumsum(kept, 0) <= left).to(tl.int32), 0)
        flags = tl.load(ints + slot * _NUM_INTS + _FLAGS)
        _finish(row, slot, position, token, 0, flags, tokens, codes, history, history_stride, counts, vocab_size)
