"""Weights as the CUDA engine's kernels want them, and the pool of KV pages: one packed tensor per projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twinpath.engine.cuda.shards import WHOLE, Shard, ShardedWeights, cut_tensor, part_of, shard_spec, vocabulary_part
from twinpath.model.dequant import dequantize
from twinpath.model.rope import cos_sin_scale, inverse_frequencies
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights, WeightTensor, WeightType
from twinpath.model.weight_names import weight_shapes

#: Canonical name -> tensor on the device: [rows, cols], or [cols] for a vector.
Loader = Callable[[str], Tensor]

_STORED = {WeightType.F32: torch.float32, WeightType.F16: torch.float16, WeightType.BF16: torch.bfloat16}


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One layer. Shapes: H heads, K key heads, D head size, I inner size; norms and biases are float32.

    qkv [(H + 2 K) D, hidden] (q, then k, then v), o [hidden, H D], gate_up [2 I, hidden] (gates, then ups),
    down [hidden, I].
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    gate_up: Tensor
    down: Tensor
    attn_norm: Tensor
    mlp_norm: Tensor
    #: Norms of a head's q and k, [D] each.
    head_norms: tuple[Tensor, Tensor] | None
    #: Norms of what attention and MLP give, [hidden] each (Gemma's sandwich).
    post_norms: tuple[Tensor, Tensor] | None


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """A model, or one rank's part of it; `spec` says what is here, but its vocabulary is the whole one: see `head`.

    Shapes: embed [vocab, hidden]; head [vocab of this rank, hidden], of `embed` itself when tied; rope_tables[i]
        float32 [max_positions, D]: cos, then sin.
    """

    spec: ModelSpec
    layers: tuple[PackedLayer, ...]
    embed: Tensor
    head: Tensor
    final_norm: Tensor
    rope_tables: tuple[Tensor, ...]
    shard: Shard = WHOLE

    @property
    def step_bytes(self) -> int:
        """Weight bytes that one decode step reads (of the embedding a row, which does not count)."""
        projections = [w for layer in self.layers for w in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        return sum(w.numel() * w.element_size() for w in [*projections, self.head])


@dataclass(frozen=True, slots=True)
class KvPool:
    """Pages of every layer: k[layer] and v[layer] are [num_pages, K, page_size, D].

    A head's page is contiguous (4 KiB at 16 tokens of 128 16-bit values). Keys are stored normed and rotated.
    """

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    page_size: int


def allocate_kv(spec: ModelSpec, num_pages: int, page_size: int, device: torch.device, dtype: torch.dtype) -> KvPool:
    """One allocation for all layers. It is zeroed: a masked lane must not meet a NaN."""
    shape = (2, spec.num_layers, num_pages, spec.num_kv_heads, page_size, spec.head_dim)
    pool = torch.zeros(shape, device=device, dtype=dtype)
    return KvPool(tuple(pool[0].unbind(0)), tuple(pool[1].unbind(0)), page_size)


def pack_weights(
    spec: ModelSpec,
    weights: Weights,
    device: torch.device,
    dtype: torch.dtype,
    max_positions: int,
    send: Callable[[WeightTensor], Tensor] | None = None,
    shard: Shard = WHOLE,
) -> PackedWeights:
    """Load every tensor, matrices as `dtype` (quantised ones are dequantised), vectors as float32.

    send: how a tensor gets to the device; None: one after another, through torch. shard: load that part of the model.
    """
    send = send or (lambda tensor: _to_device(tensor, device, dtype))
    parts = weights if shard.is_whole else ShardedWeights(weights, spec, shard)
    return _pack(spec, lambda name: send(parts[name]), device, max_positions, shard)


def random_weights(
    spec: ModelSpec, device: torch.device, dtype: torch.dtype, max_positions: int, seed: int = 0, shard: Shard = WHOLE
) -> PackedWeights:
    """Normal matrices scaled so that activations neither vanish nor grow, norms near 1; the same for every `shard`."""
    generator = torch.Generator(device=device).manual_seed(seed)
    shapes = weight_shapes(spec)

    def draw(name: str) -> Tensor:
        rows, cols = shapes[name]
        if rows == 1:
            base = 1.0 if name.endswith("norm") else 0.0
            return base + 0.1 * torch.randn(cols, device=device, generator=generator)
        values = torch.empty(rows, cols, device=device, dtype=dtype)
        return values.normal_(0, 1.0 if name == "embed" else cols**-0.5, generator=generator)

    return _pack(spec, lambda name: cut_tensor(draw(name), part_of(name, spec, shard)), device, max_positions, shard)


def rope_table(spec: ModelSpec, index: int, max_positions: int, device: torch.device) -> Tensor:
    """cos and sin of every position, in float64 until the end: float32 angles are wrong at position 100,000."""
    rope = spec.ropes[index]
    angles = np.arange(max_positions, dtype=np.float64)[:, None] * inverse_frequencies(rope, spec.head_dim)
    table = np.concatenate((np.cos(angles), np.sin(angles)), axis=1) * cos_sin_scale(rope)
    return torch.from_numpy(table.astype(np.float32)).to(device)


def _pack(spec: ModelSpec, load: Loader, device: torch.device, max_positions: int, shard: Shard) -> PackedWeights:
    embed = load("embed")
    return PackedWeights(
        spec=shard_spec(spec, shard),
        layers=tuple(_pack_layer(spec, load, f"layers.{i}.") for i in range(spec.num_layers)),
        embed=embed,
        head=_tied_head(embed, shard) if spec.tied_embeddings else load("lm_head"),
        final_norm=load("final_norm"),
        rope_tables=tuple(rope_table(spec, i, max_positions, device) for i in range(len(spec.ropes))),
        shard=shard,
    )


def _tied_head(embed: Tensor, shard: Shard) -> Tensor:
    return embed if shard.is_whole else cut_tensor(embed, vocabulary_part(len(embed), shard))


def _pack_layer(spec: ModelSpec, load: Loader, prefix: str) -> PackedLayer:
    def joined(*names: str) -> Tensor:
        return torch.cat([load(prefix + name) for name in names])

    return PackedLayer(
        qkv=joined("q", "k", "v"),
        qkv_bias=joined("q_bias", "k_bias", "v_bias") if spec.qkv_bias else None,
        o=load(prefix + "o"),
        o_bias=load(prefix + "o_bias") if spec.o_bias else None,
        gate_up=joined("gate", "up"),
        down=load(prefix + "down"),
        attn_norm=load(prefix + "attn_norm"),
        mlp_norm=load(prefix + "mlp_norm"),
        head_norms=(load(prefix + "q_norm"), load(prefix + "k_norm")) if spec.qk_norm else None,
        post_norms=(load(prefix + "post_attn_norm"), load(prefix + "post_mlp_norm")) if spec.sandwich_norms else None,
    )


def _to_device(tensor: WeightTensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A vector becomes float32. Copies: a file mapping is read-only, which torch cannot express."""
    stored = _STORED.get(tensor.type)
    values = torch.from_numpy(dequantize(tensor)) if stored is None else torch.from_numpy(np.array(tensor.data))
    if stored is not None:
        values = values.view(stored)
    if tensor.rows == 1:
        return values.reshape(tensor.cols).to(device=device, dtype=torch.float32)
    return values.reshape(tensor.rows, tensor.cols).to(device=device, dtype=dtype)
