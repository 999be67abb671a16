"""A decode step of 16 rows and more: matrix products by the vendor's library, between them the row kernels.

From 16 rows on the tensor cores' large instructions pay, which the library uses and our chain does not. Where a layer's
products can be one launch (`layer_streams`), the library is left with the first layer's q, k and v and the head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from twinpath.engine.cuda.buffers import StepBuffers, attend_rows
from twinpath.engine.cuda.chain import ChainStep
from twinpath.engine.cuda.collectives import Collective
from twinpath.engine.cuda.layer_streams import StreamedLayers, can_stream, make_layers
from twinpath.engine.cuda.weights import KvPool, PackedWeights
from twinpath.kernels.lm_head.kernel import best_of_tiles, num_best_tiles
from twinpath.kernels.prefill_rows.launch import add_norm, gate

#: H200, 8B, 32 rows at 1,024 tokens, splits of 128: with tiles of 32, 64, 128 tokens 5.95, 6.04, 6.29 ms.
_ATTENTION_TILE = 32


class ProductStep:
    """As `cuda_chain.ChainStep`: from the first norm to the logits, over buffers that `begin_step` has filled."""

    def __init__(
        self,
        weights: PackedWeights,
        kv: KvPool,
        buffers: StepBuffers,
        chain: ChainStep,
        ranks: Collective | None = None,
    ) -> None:
        """Attends as `chain` does. ranks: as for it."""
        spec, rows = weights.spec, buffers.tokens.shape[0]
        self._weights, self._kv, self._buffers, self._ranks = weights, kv, buffers, ranks
        self._attention, self._splits = replace(chain.attention, tile=_ATTENTION_TILE), chain.splits
        dtype, device = weights.embed.dtype, weights.embed.device
        self._change = torch.zeros(rows, spec.hidden_size, dtype=dtype, device=device)
        self._gate_up = torch.zeros(rows, 2 * spec.intermediate_size, dtype=dtype, device=device)
        #: Take everything but attention over, where card and model allow; the library serves the first q, k and v.
        self._streamed: StreamedLayers | None = None
        if ranks is None and can_stream(buffers.scaled):
            self._streamed = make_layers(
                weights, buffers.scaled, buffers.attended, buffers.gated, buffers.projected.view(-1)
            )

    def num_parts(self, batch: int) -> int:
        """Parts of `attn_squares` that `begin_step` must fill; nobody reads them here."""
        return 1

    def num_best(self, batch: int) -> int:
        """Entries per row of `best` and `best_id` that `launch` writes."""
        return num_best_tiles(len(self._weights.head))

    def launch(self, batch: int) -> None:
        """Rows [0, batch): writes KV, `logits`, `best` and `best_id`."""
        buffers, weights = self._buffers, self._weights
        for index in range(len(weights.layers)):
            self._layer(index, batch)
        self._norm(len(weights.layers), batch)
        logits, tiles = buffers.logits[:batch], self.num_best(batch)
        _product(buffers.scaled[:batch], weights.head, logits)
        best, best_id = (b.view(-1)[: batch * tiles].view(batch, tiles) for b in (buffers.best, buffers.best_id))
        best_of_tiles(logits, best, best_id)

    def _layer(self, index: int, batch: int) -> None:
        buffers, spec, layer = self._buffers, self._weights.spec, self._weights.layers[index]
        x, residual, change = buffers.scaled[:batch], buffers.residual[:batch], self._change[:batch]
        projected, attended, gated = buffers.projected[:batch], buffers.attended[:batch], buffers.gated[:batch]
        if self._streamed is None or index == 0:
            self._norm(index, batch)
            _product(x, layer.qkv, projected)
        if layer.qkv_bias is not None:
            projected.add_(layer.qkv_bias)
        attend_rows(index, batch, self._weights, self._kv, buffers, shape=self._attention, splits=self._splits)
        if self._streamed is not None:
            self._streamed.run(index, residual)
            return
        torch.mm(attended, layer.o.t(), out=change)
        if self._ranks is not None:
            self._ranks.add_up(change)
        post = layer.post_norms[0] if layer.post_norms else None
        add_norm(residual, change, layer.mlp_norm, x, spec.norm_eps, bias=layer.o_bias, post_weight=post)
        gate_up = self._gate_up[:batch]
        torch.mm(x, layer.gate_up.t(), out=gate_up)
        gate(gate_up, spec.activation, gated)
        torch.mm(gated, layer.down.t(), out=change)
        if self._ranks is not None:
            self._ranks.add_up(change)

    def _norm(self, index: int, batch: int) -> None:
        """Add what the layer before `index` left, and norm for this one; past the last one for the head."""
        weights, buffers = self._weights, self._buffers
        gain = weights.layers[index].attn_norm if index < len(weights.layers) else weights.final_norm
        norms = weights.layers[index - 1].post_norms if index else None
        change, post = self._change[:batch] if index else None, norms[1] if norms else None
        if self._streamed is not None:
            change = None
        residual, x = buffers.residual[:batch], buffers.scaled[:batch]
        add_norm(residual, change, gain, x, weights.spec.norm_eps, post_weight=post)


def _product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """out float32 = x @ weight^T."""
    if x.dtype == torch.float32:
        torch.mm(x, weight.t(), out=out)
    elif x.is_cuda:
        torch.mm(x, weight.t(), out_dtype=torch.float32, out=out)
    else:
        out.copy_(x.float() @ weight.float().t())
