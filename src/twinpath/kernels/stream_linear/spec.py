"""How a product of few rows is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass

#: Columns of K that one stage holds: a line of 128 bytes.
STAGE_COLUMNS = 64
#: Dynamic shared memory of one program on sm_90. All of it: with half, so that the next product's program stands beside
#: this one's, too few bytes are on their way (H200, 8B, 128 rows: 182 us a layer instead of 124).
SHARED_BYTES = 227 * 1024
#: Rows that a launch takes, one group of warps for 64: three groups have no registers for their sums.
ROW_SIZES = (64, 128)
_MOST_STAGES = 10


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile of `tile` weight rows (gates and ups together), and K in one or two slices, a program each."""

    tile: int
    splits: int


@dataclass(frozen=True, slots=True)
class LinearShape:
    """outputs: columns of the result; summed: K; gated: weights are gates, then ups, and the result their product."""

    outputs: int
    summed: int
    gated: bool = False
    gelu: bool = False

    def num_tiles(self, cut: Cut) -> int:
        return -(-self.outputs // (cut.tile // 2 if self.gated else cut.tile))


def is_supported(shape: LinearShape) -> bool:
    return shape.summed % STAGE_COLUMNS == 0 and shape.outputs % 8 == 0


def choose_cut(shape: LinearShape, num_programs: int) -> Cut:
    """The cut that takes least time by what one program loads, when `num_programs` run at a time."""
    steps = shape.summed // STAGE_COLUMNS
    best: tuple[float, Cut] | None = None
    for tile in range(32, 257, 16):
        for splits in (1,) if shape.gated else (1, 2):
            cut = Cut(tile, splits)
            waves = -(-shape.num_tiles(cut) * splits // num_programs)
            # In weight rows of a stage: beside the weights, the batch's rows, and what a program costs as such.
            cost = waves * (-(-steps // splits) * (tile + 24) + 400)
            if best is None or cost < best[0]:
                best = cost, cut
    assert best is not None
    return best[1]


def num_stages(tile: int, rows: int) -> int:
    return min(_MOST_STAGES, (SHARED_BYTES - 1040 - 16 * _MOST_STAGES) // stage_bytes(tile, rows))


def stage_bytes(tile: int, rows: int) -> int:
    return (tile + rows) * 2 * STAGE_COLUMNS


def shared_bytes(tile: int, rows: int) -> int:
    """Stages, their barriers, and room to align them."""
    stages = num_stages(tile, rows)
    return stages * (stage_bytes(tile, rows) + 16) + 8 + 1024
