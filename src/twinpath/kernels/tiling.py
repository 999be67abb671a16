"""How a product of many weight rows with few activation rows is cut: one frozen value that every launcher takes."""

from __future__ import annotations

from dataclasses import dataclass

#: Rows of an `mma` instruction's large operand.
MIN_ROWS = 16


@dataclass(frozen=True, slots=True)
class Tiling:
    """One program computes `rows` outputs for all batch rows; `slices` warps share the summed axis.

    Invariant: slices * block_k divides the summed axis (`fit_tiling` sees to it).
    """

    rows: int = MIN_ROWS
    block_k: int = 128
    slices: int = 4
    stages: int = 3


def fit_tiling(wanted: Tiling, width: int) -> Tiling:
    """`wanted`, with slices and block halved until they divide `width`."""
    slices, block_k = wanted.slices, wanted.block_k
    while slices > 1 and width % (slices * min(block_k, 64)):
        slices //= 2
    while block_k > 16 and width % (slices * block_k):
        block_k //= 2
    if width % (slices * block_k):
        raise ValueError(f"the summed axis is {width}: it must be a multiple of 16")
    return Tiling(wanted.rows, block_k, slices, wanted.stages)


def padded_batch(num_batch: int) -> int:
    """Columns of the small operand: 8 for 1 to 8 rows, so that these run the very same code."""
    return max(8, 1 << (num_batch - 1).bit_length())
