"""A decode step as a chain of Triton kernels: any batch, any model, any card; and the interpreter, for tests.

A layer is five kernels: norm scale + q, k, v; attention (norms of q and k, rotation, append, splits, merge);
o + residual; norm scale + gate, up, activation; down + residual. The scale of a norm is applied after the product: the
kernel that completes the residual stores residual * gain and sums of squares.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from twinpath.engine.cuda.buffers import StepBuffers, attend_rows
from twinpath.engine.cuda.collectives import Collective
from twinpath.engine.cuda.tuning import StepTuning, num_splits, tuning_for
from twinpath.engine.cuda.weights import KvPool, PackedLayer, PackedWeights
from twinpath.kernels.all_reduce.launch import reduce_residual, residual_parts
from twinpath.kernels.decode_attention.kernel import AttentionShape, SplitBuffers, split_buffers
from twinpath.kernels.gated_linear.kernel import gated_linear
from twinpath.kernels.linear.kernel import linear
from twinpath.kernels.linear_residual.kernel import linear_residual
from twinpath.kernels.lm_head.kernel import lm_head, num_tiles
from twinpath.kernels.residual_norm.kernel import residual_norm
from twinpath.kernels.tiling import Tiling
from twinpath.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Addition:
    """One projection onto the residual, and the norm that follows it."""

    weight: Tensor
    bias: Tensor | None
    post_gain: Tensor | None
    gain: Tensor
    squares: Tensor
    tiling: Tiling


class ChainStep:
    """From the first norm to the logits, over buffers that `begin_step` has filled."""

    def __init__(
        self, weights: PackedWeights, kv: KvPool, buffers: StepBuffers, ranks: Collective | None = None
    ) -> None:
        """ranks: with whom the model is shared; `buffers.logits` are those of this one's part of the vocabulary."""
        self._weights = weights
        self._kv = kv
        self._spec = weights.spec
        self._ranks = ranks
        self._buffers = buffers
        self.attention = attention_shape(self._spec, kv.page_size, StepTuning())
        self.splits: SplitBuffers = split_buffers(self.attention, buffers.tokens.shape[0], weights.embed.device)

    def num_parts(self, batch: int) -> int:
        """Parts of `attn_squares` that `begin_step` must fill."""
        return self._parts(tuning_for(batch).down)

    def num_best(self, batch: int) -> int:
        """Entries per row of `best` and `best_id` that `launch` writes."""
        return num_tiles(len(self._weights.head), tuning_for(batch).head)

    def launch(self, batch: int) -> None:
        """Rows [0, batch): writes KV, `logits`, `best` and `best_id`."""
        tuning, buffers, layers = tuning_for(batch), self._buffers, self._weights.layers
        for index, layer in enumerate(layers):
            last = index + 1 == len(layers)
            next_gain = self._weights.final_norm if last else layers[index + 1].attn_norm
            self._attend(index, layer, batch, tuning)
            self._mix(layer, next_gain, batch, tuning)
        tiles = self.num_best(batch)
        lm_head(
            buffers.scaled[:batch],
            self._weights.head,
            buffers.attn_squares[: self.num_parts(batch)],
            self._spec.norm_eps,
            buffers.logits[:batch],
            buffers.best.view(-1)[: batch * tiles].view(batch, tiles),
            buffers.best_id.view(-1)[: batch * tiles].view(batch, tiles),
            tiling=tuning.head,
        )

    def _attend(self, index: int, layer: PackedLayer, batch: int, tuning: StepTuning) -> None:
        buffers, spec = self._buffers, self._spec
        linear(
            buffers.scaled[:batch],
            layer.qkv,
            layer.qkv_bias,
            buffers.attn_squares[: self.num_parts(batch)],
            spec.norm_eps,
            buffers.projected[:batch],
            tiling=tuning.qkv,
        )
        attend_rows(index, batch, self._weights, self._kv, buffers, shape=self.attention, splits=self.splits)

    def _mix(self, layer: PackedLayer, next_gain: Tensor, batch: int, tuning: StepTuning) -> None:
        buffers = self._buffers
        attn_post, mlp_post = layer.post_norms or (None, None)
        mlp_squares = buffers.mlp_squares[: self._parts(tuning.o)]
        gated = buffers.gated[:batch]
        o = Addition(layer.o, layer.o_bias, attn_post, layer.mlp_norm, mlp_squares, tuning.o)
        self._add(buffers.attended[:batch], o)
        gated_linear(
            buffers.scaled[:batch],
            layer.gate_up,
            mlp_squares,
            self._spec.norm_eps,
            self._spec.activation,
            gated,
            tiling=tuning.gate_up,
        )
        attn_squares = buffers.attn_squares[: self.num_parts(batch)]
        self._add(gated, Addition(layer.down, None, mlp_post, next_gain, attn_squares, tuning.down))

    def _add(self, x: Tensor, addition: Addition) -> None:
        """residual += W x + bias, through a norm of its own where the model has one."""
        batch, a = x.shape[0], addition
        residual, scaled = self._buffers.residual[:batch], self._buffers.scaled[:batch]
        if self._ranks is not None:
            self._add_with_ranks(x, a, self._ranks)
            return
        if a.post_gain is None:
            linear_residual(x, a.weight, a.bias, a.gain, residual, scaled, a.squares, tiling=a.tiling)
            return
        eps, plain = self._spec.norm_eps, self._buffers.plain[:batch]
        linear(x, a.weight, a.bias, None, eps, plain, tiling=a.tiling)
        residual_norm(plain, a.post_gain, eps, a.gain, residual, scaled, a.squares)

    def _add_with_ranks(self, x: Tensor, a: Addition, ranks: Collective) -> None:
        """This rank's W x is one of the sums that make up the product."""
        batch, eps = x.shape[0], self._spec.norm_eps
        residual, scaled = self._buffers.residual[:batch], self._buffers.scaled[:batch]
        plain = self._buffers.plain[:batch]
        linear(x, a.weight, None, None, eps, plain, tiling=a.tiling)
        if ranks.exchange is None:
            ranks.add_up(plain)
        reduce_residual(plain, a.bias, a.post_gain, a.gain, residual, scaled, a.squares, eps, ranks.exchange)

    def _parts(self, tiling: Tiling) -> int:
        """Parts of the squares that whoever completes the residual writes."""
        if self._ranks is not None:
            return residual_parts(self._spec.hidden_size, whole_rows=self._spec.sandwich_norms)
        return self._spec.hidden_size // tiling.rows


def attention_shape(spec: ModelSpec, page_size: int, tuning: StepTuning) -> AttentionShape:
    """What the attention kernel is compiled for."""
    return AttentionShape(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        page_size=page_size,
        scale=spec.attn_scale,
        norm_eps=spec.norm_eps,
        num_splits=num_splits(spec),
        tile=tuning.attention_tile,
        warps=tuning.attention_warps,
        stages=tuning.attention_stages,
    )
