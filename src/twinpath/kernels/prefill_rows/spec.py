"""The rows of a step as kernels see them.

Shape letters: R rows, S slots, T query tiles, D head size, H query heads, K key heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Shapes: tokens, positions, slots int32 [R], slot -1 for padding; tiles int32 [T, 4] as (first row, number of
    rows, position of the first, slot), 0 rows for padding; tables int32 [S, max_pages]: the slots' pages;
    history int32 [S, longest]: where the token of a row that says -1 stands, at its position."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    tiles: Tensor
    tables: Tensor
    history: Tensor


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How a row of q, k and v is divided, and how keys are stored."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    norm_eps: float
