"""Logits of whole sequences from the native model; the same door as `reference_rows.ReferenceRows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from parity.reference_rows import scrambled_tables
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights
from twinpath.native.library import load_library
from twinpath.native.model import NativeModel, NativeOptions
from twinpath.types import Float32s, Int32s

#: Rows through the head at once: bounds the [rows, vocab] block.
_HEAD_ROWS = 32


class NativeRows:
    """Runs sequences through a `NativeModel`, every row's logits kept."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        isa: str = "auto",
        activation_bits: Literal[8, 16] = 16,
        num_tokens: int = 4096,
        max_rows: int = 256,
    ) -> None:
        """`num_tokens`: what the key-value pool holds, a multiple of the page size plus a page per sequence."""
        self.page_size = 16
        self.max_rows = max_rows
        self.num_pages = -(-num_tokens // self.page_size)
        options = NativeOptions(
            threads=2,
            isa=isa,
            activation_bits=activation_bits,
            page_size=self.page_size,
            num_pages=self.num_pages,
            max_rows=max_rows,
            max_position=spec.max_position,
        )
        self.model = NativeModel(load_library(), spec, weights, options)

    def close(self) -> None:
        self.model.close()

    def logits(self, sequences: Sequence[Sequence[int]], chunk_tokens: int, seed: int = 0) -> list[Float32s]:
        """Logits [tokens, vocab] of every sequence; all advance by `chunk_tokens` a step, in one batch."""
        return [
            np.concatenate([self.head(part) for part in parts]) for parts in self.hidden(sequences, chunk_tokens, seed)
        ]

    def hidden(self, sequences: Sequence[Sequence[int]], chunk_tokens: int, seed: int = 0) -> list[list[Float32s]]:
        """The head's inputs, per sequence and step [rows, hidden]: far smaller than the logits."""
        lengths = [len(sequence) for sequence in sequences]
        tables, num_pages = scrambled_tables(lengths, self.page_size, seed)
        assert num_pages <= self.num_pages and chunk_tokens * len(sequences) <= self.max_rows
        outputs: list[list[Float32s]] = [[] for _ in sequences]
        for start in range(0, max(lengths), chunk_tokens):
            live = [i for i, length in enumerate(lengths) if start < length]
            parts = [sequences[i][start : start + chunk_tokens] for i in live]
            counts = [len(part) for part in parts]
            ones = np.ones(len(live), np.uint8)
            computed = self.model.step(
                np.full(len(live), start, np.int32),
                np.array(counts, np.int32),
                np.zeros(len(live), np.uint8),
                np.concatenate(parts).astype(np.int32),
                _stacked([tables[i] for i in live]),
                keep_hidden=ones,
            )
            assert computed is not None
            for i, rows in zip(live, np.split(computed[1], np.cumsum(counts)[:-1]), strict=True):
                outputs[i].append(rows)
        return outputs

    def head(self, hidden: Float32s) -> Float32s:
        blocks = [self.model.logits(hidden[i : i + _HEAD_ROWS]) for i in range(0, len(hidden), _HEAD_ROWS)]
        return np.concatenate(blocks)


def _stacked(tables: list[Int32s]) -> Int32s:
    stacked = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for row, table in zip(stacked, tables, strict=True):
        row[: len(table)] = table
    return stacked
