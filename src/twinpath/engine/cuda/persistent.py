"""The persistent kernel for this model and card, where it fits; otherwise the chain runs every batch."""

from __future__ import annotations

from dataclasses import replace

import torch

from twinpath.engine.cuda.buffers import StepBuffers, window_index
from twinpath.engine.cuda.tuning import num_splits
from twinpath.engine.cuda.weights import KvPool, PackedWeights
from twinpath.kernels.all_reduce.spec import STEP_PACKETS, Exchange
from twinpath.kernels.decode_attention.kernel import SplitBuffers
from twinpath.kernels.persistent_step.kernel import (
    COLUMN_WARPS,
    LayerTensors,
    PersistentStep,
    StepShape,
    StepTensors,
    is_supported,
)


def build_persistent(
    weights: PackedWeights,
    kv: KvPool,
    buffers: StepBuffers,
    splits: SplitBuffers,
    exchange: Exchange | None = None,
) -> dict[int, PersistentStep]:
    """Compile the step (seconds) for each width of batch. Empty: not Hopper, not bfloat16, a model with parts that it
    has not, or a card (a slice of one) that holds no cluster of programs: then the chain runs every batch.

    exchange: with the ranks that share the model.
    """
    shape = step_shape(weights, kv, buffers)
    if exchange is not None:
        shape = replace(shape, rank=exchange.rank, world=exchange.world)
        if shape.hidden_size * max(COLUMN_WARPS) > STEP_PACKETS:
            return {}
    spec = weights.spec
    if spec.sandwich_norms or spec.o_bias or not is_supported(shape, weights.embed.device, weights.embed.dtype):
        return {}
    tensors = StepTensors(
        block_tables=buffers.block_tables,
        positions=buffers.positions,
        borders=buffers.borders,
        residual=buffers.residual,
        projected=buffers.projected,
        attn_squares=buffers.attn_squares,
        mlp_squares=buffers.mlp_squares,
        partial=splits.partial,
        stats=splits.stats,
        logits=buffers.logits,
        best=buffers.best,
        scaled=buffers.scaled,
        attended=buffers.attended,
        gated=buffers.gated,
        best_id=buffers.best_id,
        arrivals=torch.zeros(
            buffers.tokens.shape[0] * spec.num_kv_heads * 8, dtype=torch.int32, device=weights.embed.device
        ),
        meetings=buffers.meetings,
        inboxes=None if exchange is None else exchange.step_inboxes,
        epoch=None if exchange is None else exchange.step_epoch,
    )
    layers = _layer_tensors(weights, kv)
    steps = {
        columns: PersistentStep(shape, layers, weights.head, tensors, columns)
        for columns in COLUMN_WARPS
        if columns <= shape.max_batch
    }
    return {columns: step for columns, step in steps.items() if step.num_programs}


def step_shape(weights: PackedWeights, kv: KvPool, buffers: StepBuffers) -> StepShape:
    """What the kernel is compiled for."""
    spec = weights.spec
    return StepShape(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=len(weights.head),
        norm_eps=spec.norm_eps,
        attn_scale=spec.attn_scale,
        gelu=spec.activation == "gelu_tanh",
        head_norms=spec.qk_norm,
        qkv_bias=spec.qkv_bias,
        num_splits=num_splits(spec),
        num_windows=buffers.borders.shape[0],
        page_size=kv.page_size,
        max_batch=buffers.tokens.shape[0],
    )


def _layer_tensors(weights: PackedWeights, kv: KvPool) -> list[LayerTensors]:
    spec, layers = weights.spec, weights.layers
    gains = [*(layer.attn_norm for layer in layers[1:]), weights.final_norm]
    tensors = []
    for index, (layer, next_gain) in enumerate(zip(layers, gains, strict=True)):
        q_gain, k_gain = layer.head_norms or (None, None)
        tensors.append(
            LayerTensors(
                qkv=layer.qkv,
                o=layer.o,
                gate_up=layer.gate_up,
                down=layer.down,
                qkv_bias=layer.qkv_bias,
                mlp_gain=layer.mlp_norm,
                next_gain=next_gain,
                q_gain=q_gain,
                k_gain=k_gain,
                rope=weights.rope_tables[spec.layer_rope[index]],
                k=kv.k[index],
                v=kv.v[index],
                window=window_index(spec, index),
            )
        )
    return tensors
