"""Runs the input kernels; allocates nothing."""

from __future__ import annotations

import triton
from torch import Tensor

from twinpath.kernels.prefill_rows.spec import Rows
from twinpath.kernels.step_inputs import kernel

_BLOCK = 1024


def update_words(words: Tensor, pairs: Tensor) -> None:
    """words int32 [N]; pairs int32 [P, 2] of (index, value), every index once."""
    num = pairs.shape[0]
    kernel.update_kernel[(triton.cdiv(num, _BLOCK),)](words, pairs, num, BLOCK=_BLOCK)


def feed_decode(
    rows: Rows, num_rows: int, tokens: Tensor, positions: Tensor, block_tables: Tensor, page_size: int
) -> None:
    """The first `num_rows` rows, one token each, become a decode step's inputs.

    Shapes: tokens, positions int32 [B]; block_tables int32 [B, max_pages].
    """
    kernel.feed_kernel[(num_rows,)](
        rows.tokens, rows.positions, rows.slots, rows.history, rows.history.stride(0), rows.tables,
        rows.tables.stride(0), tokens, positions, block_tables, block_tables.stride(0), PAGE=page_size, BLOCK=_BLOCK,
    )  # fmt: skip
