"""What paged attention keeps between its programs."""

from __future__ import annotations

from twinpath.kernels.prefill_rows.spec import HeadShape

#: Rows of a tile times the query heads that share a key head.
LANES = 128
#: Of one tile's context at most, as in layout.cuh.
MAX_PARTS = 16


def num_part_slots(shape: HeadShape, max_rows: int) -> int:
    """Parts of tiles of many rows that may be kept at a time; more tiles than rows fill have fewer parts each."""
    rows = LANES * shape.num_kv_heads // shape.num_heads
    return max(-(-max_rows // rows) * MAX_PARTS, 1)


def part_bytes(shape: HeadShape, max_rows: int, max_tiles: int) -> int:
    """Bytes of a `PagedAttention`'s buffers."""
    lanes = num_part_slots(shape, max_rows) * shape.num_kv_heads * LANES + max_tiles * MAX_PARTS * shape.num_heads
    return 4 * lanes * (shape.head_dim + 2)
