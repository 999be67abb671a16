"""One decode step on the GPU: begin, then the persistent kernel or the chain, over the same buffers; and its graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from twinpath.engine.cuda.buffers import allocate_buffers
from twinpath.engine.cuda.chain import ChainStep
from twinpath.engine.cuda.collectives import Collective
from twinpath.engine.cuda.persistent import build_persistent
from twinpath.engine.cuda.products import ProductStep
from twinpath.engine.cuda.tuning import tuning_for
from twinpath.engine.cuda.weights import KvPool, PackedWeights
from twinpath.kernels.begin_step.kernel import begin_step
from twinpath.kernels.lm_head.kernel import argmax, best_of_tiles, num_best_tiles
from twinpath.kernels.persistent_step.kernel import TILE_ROWS, PersistentStep

#: Batch sizes worth a graph of their own.
BATCH_TIERS = (1, 2, 4, 8, 16, 32, 64)
#: From here on the library's products are faster than the chain's.
MIN_PRODUCT_ROWS = 16


class DecodeStep:
    """Launches or captures decode steps of 1 to `max_batch` rows over one set of buffers, on one stream.

    Batches of 1 to 8 run in the persistent kernel where it fits the model and the card (`persistent` False: never),
    or as a chain, those of 16 and more (`min_product_rows`) by the library's products; a row's result is the same, bit
    for bit, for every batch of 1 to 8. With `ranks` that share the model, each has its part of it and all launch alike.
    """

    def __init__(
        self,
        weights: PackedWeights,
        kv: KvPool,
        max_pages: int,
        max_batch: int = BATCH_TIERS[-1],
        *,
        persistent: bool = True,
        min_product_rows: int | None = None,
        ranks: Collective | None = None,
    ) -> None:
        self._weights, self._ranks = weights, ranks
        on_card = weights.embed.is_cuda
        self._min_product_rows = min_product_rows or (MIN_PRODUCT_ROWS if on_card else max_batch + 1)
        self.buffers = allocate_buffers(weights, max_pages, max_batch)
        own = self.buffers
        if ranks is not None:  # The steps write the logits of their part of the vocabulary.
            logits = torch.zeros(max_batch, len(weights.head), device=weights.embed.device)
            own = replace(self.buffers, logits=logits)
        self._own_logits = own.logits
        self._chain = ChainStep(weights, kv, own, ranks)
        self._products = ProductStep(weights, kv, own, self._chain, ranks)
        exchange = None if ranks is None else ranks.exchange
        if ranks is not None and exchange is None:  # It meets the other ranks through their memory only.
            persistent = False
        self._persistent = build_persistent(weights, kv, own, self._chain.splits, exchange) if persistent else {}

    def is_persistent(self, batch: int) -> bool:
        """Whether a step of `batch` rows is one kernel."""
        return self._persistent_for(batch) is not None

    def _persistent_for(self, batch: int) -> PersistentStep | None:
        """The narrowest that takes the batch."""
        return next((step for columns, step in self._persistent.items() if columns >= batch), None)

    def _plain_for(self, batch: int) -> ChainStep | ProductStep:
        return self._products if batch >= self._min_product_rows else self._chain

    def launch(self, batch: int) -> None:
        """Run rows [0, batch): reads tokens, positions and block tables; writes KV, `logits`, `best` and `best_id`."""
        buffers, spec = self.buffers, self._weights.spec
        persistent = self._persistent_for(batch)
        plain = self._plain_for(batch)
        parts = spec.hidden_size // TILE_ROWS if persistent else plain.num_parts(batch)
        tuning = tuning_for(batch)
        begin_step(
            buffers.tokens,
            buffers.positions,
            self._weights.embed,
            spec.embed_scale,
            self._weights.layers[0].attn_norm,
            buffers.windows,
            buffers.residual[:batch],
            buffers.scaled[:batch],
            buffers.attn_squares[:parts],
            buffers.borders,
            grain=tuning.split_grain,
            least=tuning.least_cluster_split if persistent else tuning.least_split,
            even_parts=persistent.num_splits if persistent else None,
        )
        if persistent:
            persistent.launch(batch)
        else:
            plain.launch(batch)
        if self._ranks is not None:
            self._ranks.join(self._own_logits[:batch], buffers.logits[:batch])

    def choose_greedy(self, batch: int) -> None:
        """After `launch`: the best token of each row becomes the next step's input, and positions grow by one."""
        buffers = self.buffers
        persistent = self._persistent_for(batch)
        num_best = persistent.num_programs if persistent else self._plain_for(batch).num_best(batch)
        if self._ranks is not None:  # A rank knows the best of its part only.
            num_best = num_best_tiles(buffers.logits.shape[1])
        best, best_id = (
            buffer.view(-1)[: batch * num_best].view(batch, num_best) for buffer in (buffers.best, buffers.best_id)
        )
        if self._ranks is not None:
            best_of_tiles(buffers.logits[:batch], best, best_id)
        argmax(best, best_id, buffers.argmax, (buffers.tokens, buffers.positions))

    def capture(
        self, batch: int, tail: Callable[[int], None] | None = None, num_steps: int = 1
    ) -> torch.cuda.CUDAGraph:
        """A graph of `num_steps` steps, each followed by `tail(batch)`, which writes tokens and positions.

        The kernels are compiled by a step before the capture; its tokens and positions are put back, and what it
        wrote to KV is what the first replay writes again.
        """
        tail = tail or self.choose_greedy
        buffers = self.buffers
        before = buffers.tokens.clone(), buffers.positions.clone()
        self.launch(batch)
        tail(batch)
        torch.cuda.synchronize()
        buffers.tokens.copy_(before[0])
        buffers.positions.copy_(before[1])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(num_steps):
                self.launch(batch)
                tail(batch)
        return graph
