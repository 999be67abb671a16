"""Device functions of one row: weights, ranks, bins, who arrives last, how a row ends."""

from __future__ import annotations

import triton
import triton.language as tl

from twinpath.kernels.sampler.layout import (
    BIN_SPAN,
    HAS_PENALTIES,
    ID_BITS,
    ID_MASK,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    ROUNDER,
)


@triton.jit
def is_last(arrivals, row):
    """Whether this program is the row's last to arrive; then what the others wrote before is visible to it."""
    tl.debug_barrier()
    last = tl.atomic_add(arrivals + row, 1) == tl.num_programs(1) - 1
    tl.debug_barrier()
    return last


@triton.jit
def finish(row, slot, position, token, code, flags, tokens, codes, history, history_stride, counts, vocab_size):
    """The row's token goes to the results, to the slot's history and into its counts."""
    tl.store(tokens + row, token)
    tl.store(codes + row, code)
    tl.store(history + slot * history_stride + position, token)
    if (flags & HAS_PENALTIES) != 0:
        counted = counts + slot * vocab_size + token
        tl.store(counted, tl.load(counted) + 2)


@triton.jit
def weigh(exponents):
    """rint(2**34 * exp(x)) for -64 <= x <= 0, operation by operation as `sampling.reference.fixed_exp`."""
    powers = (exponents * LOG2_E + ROUNDER) - ROUNDER
    r = (exponents - powers * LN2_HIGH) - powers * LN2_LOW
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
    return ((series * scale + ROUNDER) - ROUNDER).to(tl.int64)


@triton.jit
def exponents_of(x, row_best, inverse_temperature):
    return tl.maximum((x.to(tl.float64) - row_best.to(tl.float64)) * inverse_temperature, -64.0)


@triton.jit
def bins_of(exponents, NUM_BINS: tl.constexpr):
    """Bin 0 holds the likeliest; equal logits share a bin, and a higher logit never lies in a later one."""
    return tl.minimum((-exponents * (NUM_BINS / BIN_SPAN)).to(tl.int32), NUM_BINS - 1)


@triton.jit
def ranks(x, ids):
    """One int64 per id, distinct: by logit, then by lower id."""
    bits = x.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << ID_BITS) | (ids ^ ID_MASK).to(tl.int64)


@triton.jit
def weights_of_ranks(rank, row_best, inverse_temperature):
    """A rank holds its logit's bits."""
    ordered = (rank >> ID_BITS).to(tl.int32)
    x = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return weigh(exponents_of(x, row_best, inverse_temperature))


@triton.jit
def random64(seed, position):
    """Philox4x32-10, key `seed`, counter `position`: its first two words, low word first."""
    counter = position.to(tl.uint32)
    nothing = counter * 0
    low, high, _, _ = tl.philox(seed.to(tl.uint64), counter, nothing, nothing, nothing)
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)
