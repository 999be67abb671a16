"""Small kernels that put a step's inputs where the step reads them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fetch_kernel(
    ring, num_blocks, block_words, turn, fetched, block, words, HEADER: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program: the next block of a ring in the host's memory. Its rows go to `block`, its pairs say what to write
    where in `words`; then the host reads in `fetched` that this place of the ring is free."""
    number = tl.load(turn)
    source = ring + (number % num_blocks) * block_words
    lanes = tl.arange(0, BLOCK)
    # Most steps' rows come with this load, which does not wait for the header.
    values = tl.load(source + HEADER + lanes, mask=HEADER + lanes < block_words, other=0, cache_modifier=".cv")
    num_rows, num_pairs = tl.load(source, cache_modifier=".cv"), tl.load(source + 1, cache_modifier=".cv")
    tl.store(block + lanes, values, mask=lanes < num_rows)
    for first in range(BLOCK, num_rows, BLOCK):
        more = tl.load(source + HEADER + first + lanes, mask=first + lanes < num_rows, other=0, cache_modifier=".cv")
        tl.store(block + first + lanes, more, mask=first + lanes < num_rows)
    for first in range(0, num_pairs, BLOCK):
        pair, inside = source + HEADER + num_rows + 2 * (first + lanes), first + lanes < num_pairs
        where = tl.load(pair, mask=inside, other=0, cache_modifier=".cv")
        what = tl.load(pair + 1, mask=inside, other=0, cache_modifier=".cv")
        tl.store(words + where, what, mask=inside)
    tl.debug_barrier()  # What was loaded has been stored.
    tl.store(turn, number + 1)
    tl.store(fetched, number + 1)


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
