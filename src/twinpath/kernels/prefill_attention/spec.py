"""How prefill attention is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
    #: Few rows on a long context: parts of it until there are so many programs, of so many keys at least.
    programs: int = 132
    least_keys: int = 1024
    #: Keys of a block, and stages, where programs share a context (8B, 128 rows after 32K: 223 us a layer, with (64, 3)
    #: 256, unshared 916).
    shared: tuple[int, int] = (128, 2)
    #: Whether a context may be shared: a row's bits then depend on what else is in its step.
    shares_contexts: bool = True

    @classmethod
    def fixed(cls) -> AttentionTiling:
        """One way for every number of rows, so that a row's bits do not depend on it."""
        tiling = cls()
        return replace(tiling, warps_of_long=tiling.warps, shares_contexts=False)


@dataclass(frozen=True, slots=True)
class KeyParts:
    """Where programs that share a context leave what they found, for `num_tiles` query tiles at most.

    Shapes: sums float32 [groups, num_tiles, lanes, DIM]; stats float32 [groups, num_tiles, 2, lanes]; arrivals int32
        [groups, num_tiles], zero before the first launch and again after each.
    """

    sums: Tensor
    stats: Tensor
    arrivals: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.sums, self.stats, self.arrivals

    @property
    def most_tiles(self) -> int:
        """A power of two that no step's tiles exceed; one value, so that the kernel is compiled once."""
        return 1 << (self.arrivals.shape[1] - 1).bit_length()

    @classmethod
    def allocate(cls, shape: HeadShape, tiling: AttentionTiling, num_tiles: int, device: torch.device) -> KeyParts:
        groups, dim = shape.num_heads // packed_heads(shape), max(16, 1 << (shape.head_dim - 1).bit_length())
        lead = (groups, num_tiles)
        return cls(
            torch.zeros(*lead, tiling.lanes, dim, device=device),
            torch.zeros(*lead, 2, tiling.lanes, device=device),
            torch.zeros(*lead, dtype=torch.int32, device=device),
        )


def rows_per_tile(shape: HeadShape, tiling: AttentionTiling) -> int:
    """Rows of one tile in `Rows.tiles`."""
    return tiling.lanes // packed_heads(shape)


def packed_heads(shape: HeadShape) -> int:
    """Query heads of one program: all that share a key head when their number is a power of two, else one."""
    group = shape.num_heads // shape.num_kv_heads
    return group if group & (group - 1) == 0 and group <= 16 else 1
