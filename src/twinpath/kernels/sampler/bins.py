"""Device functions over a row's histogram: where a cut lies."""

from __future__ import annotations

import triton
import triton.language as tl

from twinpath.kernels.sampler.layout import (
    COARSE,
    COUNT_SHIFT,
    FEW,
    FIRST_BIN,
    IS_WHOLE,
    LAST_BIN,
    MEASURE,
    REMAINING,
    SUM_MASK,
    WEIGHT_SHIFT,
)


@triton.jit
def needed_weight(total, top_p):
    """ceil(top_p * total), at least 1."""
    wanted = top_p * total.to(tl.float64)
    needed = wanted.to(tl.int64)
    return tl.maximum(needed + (needed.to(tl.float64) < wanted).to(tl.int64), 1)


@triton.jit
def reach(words, MODE: tl.constexpr):
    """What summed bin words say: 0 ids; 1 weight, short by less than 2**8 an id; 2 weight, too much by as little."""
    if MODE == 0:
        return words >> COUNT_SHIFT
    elif MODE == 1:
        return (words & SUM_MASK) << WEIGHT_SHIFT
    else:
        return ((words & SUM_MASK) + (words >> COUNT_SHIFT)) << WEIGHT_SHIFT


@triton.jit
def find_bin(bins_row, coarse, needed, MODE: tl.constexpr, NUM_BINS: tl.constexpr):
    """The first bin at which `needed` is reached (the last one if it never is), and the words summed up to there."""
    fine_bins: tl.constexpr = NUM_BINS // COARSE
    at = tl.minimum(tl.sum((reach(tl.cumsum(coarse, 0), MODE) < needed).to(tl.int32), 0), COARSE - 1)
    base = tl.sum(tl.where(tl.arange(0, COARSE) < at, coarse, 0), 0)
    lanes = tl.arange(0, fine_bins)
    fine = tl.load(bins_row + at * fine_bins + lanes, cache_modifier=".cg")
    running = tl.cumsum(fine, 0) + base
    inner = tl.minimum(tl.sum((reach(running, MODE) < needed).to(tl.int32), 0), fine_bins - 1)
    return at * fine_bins + inner, base + tl.sum(tl.where(lanes <= inner, fine, 0), 0)


@triton.jit
def coarse_bins(bins_row, NUM_BINS: tl.constexpr):
    fine_bins: tl.constexpr = NUM_BINS // COARSE
    offsets = tl.arange(0, COARSE)[:, None] * fine_bins + tl.arange(0, fine_bins)[None, :]
    return tl.sum(tl.load(bins_row + offsets, cache_modifier=".cg"), 1)


@triton.jit
def plan_cut(state, measure, first, last, remaining, reached):
    """Where the next cut lies; when few ids lie up to there, all of them are to be gathered."""
    is_whole = reach(reached, 0) <= FEW
    tl.store(state + MEASURE, measure)
    tl.store(state + FIRST_BIN, tl.where(is_whole, 0, first).to(tl.int64))
    tl.store(state + LAST_BIN, last.to(tl.int64))
    tl.store(state + REMAINING, remaining)
    tl.store(state + IS_WHOLE, is_whole.to(tl.int64))
