"""One decode step on the GPU: fixed buffers, a chain of kernels, and its capture as one CUDA graph.

A layer is five kernels: norm scale + q, k, v; attention (norms of q and k, rotation, append, splits, merge);
o + residual; norm scale + gate, up, activation; down + residual. Each kernel's weights are asked for before it waits
for the one before it (programmatic dependent launch). The scale of a norm is applied after the product: the kernel
that completes the residual stores residual * gain and sums of squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from twinpath.engine.cuda_tuning import StepTuning, num_splits, tuning_for
from twinpath.engine.cuda_weights import KvPool, PackedLayer, PackedWeights
from twinpath.kernels.begin_step.kernel import begin_step
from twinpath.kernels.decode_attention.kernel import AttentionShape, decode_attention, split_buffers
from twinpath.kernels.gated_linear.kernel import gated_linear
from twinpath.kernels.linear.kernel import linear
from twinpath.kernels.linear_residual.kernel import linear_residual
from twinpath.kernels.lm_head.kernel import argmax, lm_head, num_tiles
from twinpath.kernels.residual_norm.kernel import residual_norm
from twinpath.kernels.tiling import MIN_ROWS, Tiling
from twinpath.model.spec import ModelSpec

#: Batch sizes worth a graph of their own.
BATCH_TIERS = (1, 2, 4, 8, 16, 32, 64)
#: A window wider than any position.
_NO_WINDOW = 1 << 30


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Everything a step reads and writes beside weights and KV; addresses never change.

    Shapes (B rows at most): tokens, positions, argmax int32 [B]; block_tables int32 [B, max_pages]; logits float32
        [B, vocab]. A row with position -1 is padding: it touches no KV, its results mean nothing.
    """

    tokens: Tensor
    positions: Tensor
    block_tables: Tensor
    logits: Tensor
    argmax: Tensor
    best: Tensor
    best_id: Tensor
    borders: Tensor
    windows: Tensor
    residual: Tensor
    scaled: Tensor
    projected: Tensor
    attended: Tensor
    plain: Tensor
    gated: Tensor
    attn_squares: Tensor
    mlp_squares: Tensor


@dataclass(frozen=True, slots=True)
class Addition:
    """One projection onto the residual, and the norm that follows it."""

    weight: Tensor
    bias: Tensor | None
    post_gain: Tensor | None
    gain: Tensor
    squares: Tensor
    tiling: Tiling


class DecodeStep:
    """Launches or captures decode steps of 1 to `max_batch` rows over one set of buffers, on one stream."""

    def __init__(
        self, weights: PackedWeights, kv: KvPool, max_pages: int, max_batch: int = BATCH_TIERS[-1], pdl: bool = True
    ) -> None:
        self._weights = weights
        self._kv = kv
        self._spec = weights.spec
        self._pdl = pdl
        self._windows = sorted({w or _NO_WINDOW for w in self._spec.layer_window})
        self.buffers = _allocate(weights, self._windows, max_pages, max_batch)
        self._attention = _attention_shape(self._spec, kv.page_size, StepTuning())
        self._splits = split_buffers(self._attention, max_batch, weights.embed.device)

    def launch(self, batch: int, tuning: StepTuning | None = None) -> None:
        """Run rows [0, batch): reads tokens, positions and block tables; writes KV, `logits`, `best` and `best_id`."""
        tuning = tuning or tuning_for(batch)
        buffers, eps, spec = self.buffers, self._spec.norm_eps, self._spec
        layers = self._weights.layers
        parts = spec.hidden_size // tuning.down.rows
        begin_step(
            buffers.tokens,
            buffers.positions,
            self._weights.embed,
            spec.embed_scale,
            layers[0].attn_norm,
            buffers.windows,
            buffers.residual[:batch],
            buffers.scaled[:batch],
            buffers.attn_squares[:parts],
            buffers.borders,
            grain=tuning.split_grain,
            pdl=self._pdl,
        )
        for index, layer in enumerate(layers):
            last = index + 1 == len(layers)
            next_gain = self._weights.final_norm if last else layers[index + 1].attn_norm
            self._attend(index, layer, batch, tuning)
            self._mix(layer, next_gain, batch, tuning)
        tiles = num_tiles(spec.vocab_size, tuning.head)
        lm_head(
            buffers.scaled[:batch],
            self._weights.head,
            buffers.attn_squares[:parts],
            eps,
            buffers.logits[:batch],
            buffers.best.view(-1)[: batch * tiles].view(batch, tiles),
            buffers.best_id.view(-1)[: batch * tiles].view(batch, tiles),
            tiling=tuning.head,
            pdl=self._pdl,
        )

    def choose_greedy(self, batch: int, tuning: StepTuning | None = None) -> None:
        """After `launch`: the best token of each row becomes the next step's input, and positions grow by one."""
        tiles = num_tiles(self._spec.vocab_size, (tuning or tuning_for(batch)).head)
        buffers = self.buffers
        argmax(
            buffers.best.view(-1)[: batch * tiles].view(batch, tiles),
            buffers.best_id.view(-1)[: batch * tiles].view(batch, tiles),
            buffers.argmax,
            (buffers.tokens, buffers.positions),
            pdl=self._pdl,
        )

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

    def _attend(self, index: int, layer: PackedLayer, batch: int, tuning: StepTuning) -> None:
        buffers, spec = self.buffers, self._spec
        parts = spec.hidden_size // tuning.down.rows
        projected, attended = buffers.projected[:batch], buffers.attended[:batch]
        linear(
            buffers.scaled[:batch],
            layer.qkv,
            layer.qkv_bias,
            buffers.attn_squares[:parts],
            spec.norm_eps,
            projected,
            tiling=tuning.qkv,
            pdl=self._pdl,
        )
        window = self._windows.index(spec.layer_window[index] or _NO_WINDOW)
        decode_attention(
            projected,
            layer.head_norms,
            self._weights.rope_tables[spec.layer_rope[index]],
            (self._kv.k[index], self._kv.v[index]),
            buffers.block_tables,
            buffers.positions,
            buffers.borders[window],
            attended,
            shape=self._attention,
            buffers=self._splits,
            pdl=self._pdl,
        )

    def _mix(self, layer: PackedLayer, next_gain: Tensor, batch: int, tuning: StepTuning) -> None:
        buffers, hidden = self.buffers, self._spec.hidden_size
        attn_post, mlp_post = layer.post_norms or (None, None)
        mlp_squares = buffers.mlp_squares[: hidden // tuning.o.rows]
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
            pdl=self._pdl,
        )
        attn_squares = buffers.attn_squares[: hidden // tuning.down.rows]
        self._add(gated, Addition(layer.down, None, mlp_post, next_gain, attn_squares, tuning.down))

    def _add(self, x: Tensor, addition: Addition) -> None:
        """residual += W x + bias, through a norm of its own where the model has one."""
        batch, a = x.shape[0], addition
        residual, scaled = self.buffers.residual[:batch], self.buffers.scaled[:batch]
        if a.post_gain is None:
            linear_residual(x, a.weight, a.bias, a.gain, residual, scaled, a.squares, tiling=a.tiling, pdl=self._pdl)
            return
        eps, plain = self._spec.norm_eps, self.buffers.plain[:batch]
        linear(x, a.weight, a.bias, None, eps, plain, tiling=a.tiling, pdl=self._pdl)
        residual_norm(plain, a.post_gain, eps, a.gain, residual, scaled, a.squares, pdl=self._pdl)


def _attention_shape(spec: ModelSpec, page_size: int, tuning: StepTuning) -> AttentionShape:
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
        prefetch_tokens=tuning.attention_prefetch,
    )


def _allocate(weights: PackedWeights, windows: list[int], max_pages: int, max_batch: int) -> StepBuffers:
    spec, device, dtype = weights.spec, weights.embed.device, weights.embed.dtype
    heads = spec.num_heads + 2 * spec.num_kv_heads
    parts = spec.hidden_size // MIN_ROWS

    def ints(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return StepBuffers(
        tokens=ints(max_batch),
        positions=ints(max_batch) - 1,
        block_tables=ints(max_batch, max_pages),
        logits=floats(max_batch, spec.vocab_size),
        argmax=ints(max_batch),
        best=floats(max_batch, -(-spec.vocab_size // MIN_ROWS)),
        best_id=ints(max_batch, -(-spec.vocab_size // MIN_ROWS)),
        borders=ints(len(windows), max_batch, num_splits(spec) + 1),
        windows=torch.tensor(windows, dtype=torch.int32, device=device),
        residual=floats(max_batch, spec.hidden_size),
        scaled=floats(max_batch, spec.hidden_size, dtype=dtype),
        projected=floats(max_batch, heads * spec.head_dim),
        attended=floats(max_batch, spec.num_heads * spec.head_dim, dtype=dtype),
        plain=floats(max_batch, spec.hidden_size),
        gated=floats(max_batch, spec.intermediate_size, dtype=dtype),
        attn_squares=floats(parts, max_batch),
        mlp_squares=floats(parts, max_batch),
    )
