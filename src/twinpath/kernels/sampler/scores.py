"""Log-probabilities of raw logits on the card, for cards without the cluster sampler and for prompts.

One launch over rows of (row, block) programs: each finds its block's best ids and its sum of exponentials; the row's
last to arrive puts them together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twinpath.kernels.sampler.layout import ID_BITS, ID_MASK, INF, LEAST, MAX_TOP, NUM_INTS, NUM_SCORES, NUM_TOP
from twinpath.kernels.sampler.row import is_last, ranks
from twinpath.kernels.tile import await_previous_kernel


@triton.jit
def _logits_of_ranks(rank):
    ordered = (rank >> ID_BITS).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["fixed_top"])
def score_kernel(
    logits, logits_stride, row_slots, ints, tokens, codes, tops, tops_stride, block_best, block_sums, scores, arrivals,
    vocab_size, fixed_top, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """fixed_top: how many best ids each row wants; -1: what its slot says, and only rows whose code is OK."""
    await_previous_kernel(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(row_slots + row).to(tl.int64)
    if slot < 0:
        return
    num_top = fixed_top.to(tl.int64)
    if fixed_top < 0:
        num_top = tl.load(ints + slot * NUM_INTS + NUM_TOP)
        if (num_top < 0) | (tl.load(codes + row) != 0):
            return
    row_logits = logits + row.to(tl.int64) * logits_stride
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(row_logits + offsets, mask=offsets < vocab_size, other=-INF)
    is_bad = tl.max(((x != x) | (x == INF)).to(tl.int32), 0) != 0
    x = tl.where(is_bad | (x == 0), 0.0, x)
    best = tl.max(x, 0)
    is_there = x > -INF
    distance = tl.where(is_there, x, 0.0) - tl.where(is_there, best, 0.0)
    total = tl.sum(tl.where(is_there, tl.exp(distance), 0.0).to(tl.float64), 0)
    tl.store(block_best + row * BLOCKS + block, tl.where(is_bad, INF, best))
    tl.store(block_sums + row * BLOCKS + block, total.to(tl.int64, bitcast=True))
    keys = ranks(x, offsets)
    own = tops + row.to(tl.int64) * tops_stride + block * MAX_TOP
    for place in range(num_top):
        largest = tl.max(keys, 0)
        tl.store(own + place, largest)
        keys = tl.where(keys == largest, LEAST, keys)
    if is_last(arrivals, row):
        tl.store(arrivals + row, 0)
        lanes = tl.arange(0, triton.next_power_of_2(BLOCKS))
        at = row * BLOCKS + lanes
        bests = tl.load(block_best + at, mask=lanes < BLOCKS, other=-INF, cache_modifier=".cg")
        sums = tl.load(block_sums + at, mask=lanes < BLOCKS, other=0, cache_modifier=".cg")
        row_best = tl.max(bests, 0)
        base = tl.where((row_best < INF) & (row_best > -INF), row_best, 0.0).to(tl.float64)
        is_part = (bests < INF) & (bests > -INF)
        below = tl.where(is_part, bests.to(tl.float64), base) - base
        total = tl.sum(tl.where(is_part, sums.to(tl.float64, bitcast=True) * tl.exp(below), 0.0), 0)
        log_total = tl.log(tl.where(total > 0, total, 1.0))
        own_logit = tl.load(row_logits + tl.load(tokens + row)).to(tl.float64)
        out = scores + row * NUM_SCORES
        # A row that cannot be scored says NaN, or infinity when nothing is above -inf.
        logprob = tl.where(row_best == INF, float("nan"), own_logit - base - log_total)
        tl.store(out, tl.where(row_best == -INF, INF, logprob))
        candidates = tl.arange(0, triton.next_power_of_2(BLOCKS * MAX_TOP))
        is_written = (candidates < BLOCKS * MAX_TOP) & (candidates % MAX_TOP < num_top)
        row_tops = tops + row.to(tl.int64) * tops_stride
        # A name of its own: a variable keeps one shape through a branch.
        row_keys = tl.load(row_tops + candidates, mask=is_written, other=LEAST, cache_modifier=".cg")
        for place in range(num_top):
            largest = tl.max(row_keys, 0)
            logit = _logits_of_ranks(largest)
            is_id = (largest > LEAST) & (logit > -INF)
            tl.store(out + 1 + place, tl.where(is_id, logit.to(tl.float64) - base - log_total, 0.0))
            token = ((largest & ID_MASK) ^ ID_MASK).to(tl.float64)
            tl.store(out + 1 + MAX_TOP + place, tl.where(is_id, token, -1.0))
            row_keys = tl.where(row_keys == largest, LEAST, row_keys)
