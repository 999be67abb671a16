"""Logits of whole sequences from the reference model, however their rows are cut: chunks, batches, pages, layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from twinpath.engine.reference_model import Batch, PagedCache, ReferenceModel
from twinpath.model.files import files_at
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights
from twinpath.model.weights import load_weights, read_spec
from twinpath.types import Float32s, Int32s

PAGE_SIZE = 4


def open_model(path: Path) -> tuple[ModelSpec, Weights]:
    files = files_at(path)
    spec = read_spec(files)
    return spec, load_weights(files, spec)


def scrambled_tables(num_tokens: Sequence[int], page_size: int, seed: int) -> tuple[list[Int32s], int]:
    """One block table per sequence over a shared pool, in random order, and the pool's size in pages."""
    counts = [-(-n // page_size) for n in num_tokens]
    spare = 3
    order = np.random.default_rng(seed).permutation(sum(counts) + spare).astype(np.int32)
    return np.split(order[: sum(counts)], np.cumsum(counts)[:-1]), sum(counts) + spare


def relative_error(values: NDArray[np.floating], right: NDArray[np.floating]) -> float:
    """max |a - b| / max |b|."""
    return float(np.abs(values - right).max() / np.abs(right).max())


class ReferenceRows:
    """Runs sequences through a `ReferenceModel` over a paged cache that starts full of NaN."""

    def __init__(
        self, spec: ModelSpec, weights: Weights, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self.model = ReferenceModel(spec, weights, torch.device(device), dtype)

    def logits(
        self,
        sequences: Sequence[Sequence[int]],
        chunk_tokens: int | None = None,
        slices: Sequence[int] = (),
        seed: int = 0,
    ) -> list[Float32s]:
        """Logits [tokens, vocab] of every sequence; all advance by `chunk_tokens` a step, in one batch.

        `slices`: layers at which a step is cut; the residual goes through a numpy buffer there.
        """
        hidden = self.hidden(sequences, chunk_tokens, slices, seed)
        return [np.concatenate([self.head(part) for part in parts]) for parts in hidden]

    @torch.inference_mode()
    def hidden(
        self,
        sequences: Sequence[Sequence[int]],
        chunk_tokens: int | None = None,
        slices: Sequence[int] = (),
        seed: int = 0,
    ) -> list[list[Float32s]]:
        """The head's inputs, per sequence and step [rows, hidden]: far smaller than the logits."""
        lengths = [len(sequence) for sequence in sequences]
        tables, num_pages = scrambled_tables(lengths, PAGE_SIZE, seed)
        cache = PagedCache(self.spec, num_pages, PAGE_SIZE, self.model.device, self.dtype)
        for pages in (*cache.k, *cache.v):
            pages.fill_(float("nan"))
        chunk = chunk_tokens or max(lengths)
        outputs: list[list[Float32s]] = [[] for _ in sequences]
        for start in range(0, max(lengths), chunk):
            live = [i for i, length in enumerate(lengths) if start < length]
            tokens = [list(sequences[i][start : start + chunk]) for i in live]
            counts = [len(part) for part in tokens]
            batch = self.model.batch([start] * len(live), counts, [tables[i] for i in live], PAGE_SIZE)
            x = self._layers(list(chain.from_iterable(tokens)), batch, cache, slices).cpu().numpy()
            for i, rows in zip(live, np.split(x, np.cumsum(counts)[:-1]), strict=True):
                outputs[i].append(rows)
        return outputs

    @torch.inference_mode()
    def head(self, hidden: Float32s) -> Float32s:
        logits: Float32s = self.model.logits(torch.from_numpy(hidden).to(self.model.device)).cpu().numpy()
        return logits

    def _layers(self, tokens: list[int], batch: Batch, cache: PagedCache, slices: Sequence[int]) -> torch.Tensor:
        x = self.model.embed(torch.tensor(tokens, device=self.model.device))
        for layer in range(self.spec.num_layers):
            if layer in slices:
                x = torch.from_numpy(x.cpu().numpy().copy()).to(self.model.device)
            x = self.model.layer(layer, x, batch, cache)
        return x
