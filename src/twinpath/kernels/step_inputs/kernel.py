"""Small kernels that put a step's inputs where the step reads them."""

from __future__ import annotations

import triton
import triton.language as tl


# How many there are differs from step to step; a number that Triton specialised on would be compiled while others wait.
@triton.jit(do_not_specialize=["num_pairs"])
def update_kernel(words, pairs, num_pairs, BLOCK: tl.constexpr):
    """words[pairs[i, 0]] = pairs[i, 1]."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < num_pairs
    where = tl.load(pairs + 2 * lanes, mask=inside, other=0)
    tl.store(words + where, tl.load(pairs + 2 * lanes + 1, mask=inside, other=0), mask=inside)


@triton.jit
def feed_kernel(
    tokens, positions, slots, history, history_stride, tables, max_pages,
    out_tokens, out_positions, out_tables, out_pages, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A decode step's tokens, positions and block tables from rows by slot; a row without slot becomes padding."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        tl.store(out_positions + row, -1)
        tl.store(out_tokens + row, 0)
        return
    position = tl.load(positions + row)
    token = tl.load(tokens + row)
    if token < 0:
        token = tl.load(history + slot * history_stride + position)
    tl.store(out_tokens + row, token)
    tl.store(out_positions + row, position)
    for first in range(0, position // PAGE + 1, BLOCK):
        lanes = first + tl.arange(0, BLOCK)
        inside = lanes <= position // PAGE
        pages = tl.load(tables + slot * max_pages + lanes, mask=inside, other=0)
        tl.store(out_tables + row * out_pages + lanes, pages, mask=inside)
