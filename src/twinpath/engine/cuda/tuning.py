"""Which tiling each projection takes: the one table that measurements change."""

from __future__ import annotations

from dataclasses import dataclass

from twinpath.kernels.tiling import Tiling
from twinpath.model.spec import ModelSpec

#: Programs that fill the card once: an H200 has 132 multiprocessors.
_WANTED_PROGRAMS = 128
_MAX_SPLITS = 32
#: H200, Llama-3.1-8B, batch 1 and 8: the best of 11 to 13 for each projection; blocks of 64 lose 5 to 15 %.
_SMALL = Tiling(rows=16, block_k=128, slices=4, stages=3)
_HEAD = Tiling(rows=32, block_k=128, slices=4, stages=3)


@dataclass(frozen=True, slots=True)
class StepTuning:
    """Tilings of one decode step. Batches of 1 to 8 share one value: it fixes the order of every sum."""

    qkv: Tiling = _SMALL
    o: Tiling = _SMALL
    gate_up: Tiling = _SMALL
    down: Tiling = _SMALL
    head: Tiling = _HEAD
    attention_tile: int = 64
    #: A split of the context is a multiple of so many tokens.
    split_grain: int = 16
    #: Shorter splits cost more to merge than they save. H200, 8B at 1024 tokens, ms for 1 and 8 rows: with 128 3.71 and
    #: 4.53, with 192 3.73 and 4.41, with 256 3.76 and 4.41.
    least_split: int = 192
    #: The same where a cluster of programs shares a split, cut evenly.
    least_cluster_split: int = 512
    attention_warps: int = 4
    attention_stages: int = 2


def num_splits(spec: ModelSpec) -> int:
    """Parts of a row's context: enough for one row alone to fill the card, and the same in every batch."""
    splits = 1
    while splits * spec.num_kv_heads < _WANTED_PROGRAMS and splits < _MAX_SPLITS:
        splits *= 2
    return splits


def tuning_for(batch: int) -> StepTuning:
    """From 16 rows on, where the library does the products, shorter splits pay (8B, 32 rows: 192 tokens 6.07 ms, 128
    6.04, 96 6.21)."""
    return StepTuning() if batch < 16 else StepTuning(least_split=128)
