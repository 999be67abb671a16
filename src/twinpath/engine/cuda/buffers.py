"""The fixed buffers of the decode step: whichever way it runs, addresses never change after start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twinpath.engine.cuda.tuning import num_splits
from twinpath.engine.cuda.weights import KvPool, PackedWeights
from twinpath.kernels.decode_attention.kernel import AttentionShape, SplitBuffers, decode_attention
from twinpath.kernels.tiling import MIN_ROWS
from twinpath.model.spec import ModelSpec

#: A window wider than any position.
NO_WINDOW = 1 << 30


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
    #: Counters of the persistent kernel's grid barrier, zero between launches.
    meetings: Tensor


def distinct_windows(spec: ModelSpec) -> list[int]:
    """Window sizes of the model's layers; row i of `borders` belongs to the i-th."""
    return sorted({window or NO_WINDOW for window in spec.layer_window})


def window_index(spec: ModelSpec, layer: int) -> int:
    """Which row of `borders` a layer reads."""
    return distinct_windows(spec).index(spec.layer_window[layer] or NO_WINDOW)


def attend_rows(
    index: int,
    batch: int,
    weights: PackedWeights,
    kv: KvPool,
    buffers: StepBuffers,
    *,
    shape: AttentionShape,
    splits: SplitBuffers,
    pdl: bool = False,
) -> None:
    """Attention of layer `index` for rows [0, batch): from `projected` to `attended`; their KV is written first."""
    spec, layer = weights.spec, weights.layers[index]
    decode_attention(
        buffers.projected[:batch],
        layer.head_norms,
        weights.rope_tables[spec.layer_rope[index]],
        (kv.k[index], kv.v[index]),
        buffers.block_tables,
        buffers.positions,
        buffers.borders[window_index(spec, index)],
        buffers.attended[:batch],
        shape=shape,
        buffers=splits,
        pdl=pdl,
    )


def allocate_buffers(weights: PackedWeights, max_pages: int, max_batch: int) -> StepBuffers:
    """Everything at once, before ready."""
    windows = distinct_windows(weights.spec)
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
        meetings=ints(2),
    )
