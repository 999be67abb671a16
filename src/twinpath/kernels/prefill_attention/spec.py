"""How prefill attention is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass

from twinpath.kernels.prefill_rows.spec import HeadShape


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Lanes of a program (rows times the query heads that share a key head), keys of a block, and how it is run."""

    lanes: int = 128
    keys: int = 64
    #: Few warps for a chunk that fills the card (measured +20 %), more where one program's time counts.
    warps: int = 8
    warps_of_long: int = 4
    long_rows: int = 1024
    stages: int = 3


def rows_per_tile(shape: HeadShape, tiling: AttentionTiling) -> int:
    """Rows of one tile in `Rows.tiles`."""
    return tiling.lanes // packed_heads(shape)


def packed_heads(shape: HeadShape) -> int:
    """Query heads of one program: all that share a key head when their number is a power of two, else one."""
    group = shape.num_heads // shape.num_kv_heads
    return group if group & (group - 1) == 0 and group <= 16 else 1
