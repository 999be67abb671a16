"""Tiles of the product. Shape letters: M rows, N outputs, K summed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, outputs and summed values of one program's step, and how it is run."""

    rows: int
    outputs: int
    summed: int
    warps: int
    stages: int


#: Up to 64 rows: as many programs as a card has multiprocessors, since the weights' bytes are what counts.
FEW = Tile(64, 32, 128, 4, 5)
#: More rows. The same instruction (64 rows, 16 summed values) in the same order, so the same bits.
MANY = Tile(128, 128, 64, 8, 4)


def tile_for(num_rows: int, is_float32: bool) -> Tile:
    """float32 sums in the order that a tile's shape gives, so it has one tile."""
    return FEW if num_rows <= FEW.rows or is_float32 else MANY
