"""Runs the input kernels; allocates nothing."""

from __future__ import annotations

from torch import Tensor

from twinpath.kernels.prefill_rows.spec import Rows
from twinpath.kernels.step_inputs import kernel

_BLOCK = 1024
_FETCH_BLOCK = 4096
#: Words before a block's rows, as in `engine/cuda/inputs.py`.
_HEADER = 2


def fetch_inputs(ring: Tensor, turn: Tensor, fetched: Tensor, block: Tensor, words: Tensor) -> None:
    """The ring's block number `turn` goes to `block`, its pairs (index, value) into `words`; both counts grow by one.

    Shapes: ring int32 [num_blocks, 2 + N] and fetched int64 [1], in the host's pinned memory; turn int64 [1];
        block int32 [N]; words int32 [W]. A step names every index once.
    """
    kernel.fetch_kernel[(1,)](
        ring, len(ring), ring.stride(0), turn, fetched, block, words, HEADER=_HEADER, BLOCK=_FETCH_BLOCK, num_warps=16
    )


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
