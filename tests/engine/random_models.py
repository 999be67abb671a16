"""Random models given as a spec and weights in memory: one small spec per family, no files, no other library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinpath.model.spec import ModelSpec, RopeSpec
from twinpath.model.tensors import Weights, WeightTensor, WeightType
from twinpath.model.weight_names import weight_shapes
from twinpath.types import Float32s

VOCAB_SIZE = 160
WINDOW = 16

_LLAMA = ModelSpec(
    family="llama",
    num_layers=3,
    hidden_size=96,
    intermediate_size=160,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=VOCAB_SIZE,
    max_position=160,
    norm_eps=1e-5,
    tied_embeddings=False,
    activation="silu",
    qkv_bias=False,
    o_bias=False,
    qk_norm=False,
    sandwich_norms=False,
    embed_scale=1.0,
    attn_scale=0.25,
    ropes=(RopeSpec(500.0, scaling="llama3", factor=8.0, original_max_positions=32),),
    layer_rope=(0, 0, 0),
    layer_window=(None, None, None),
)

#: One spec per family; together they use every field of `ModelSpec`.
SPECS = {
    "llama": _LLAMA,
    "smollm2": replace(_LLAMA, tied_embeddings=True, num_heads=9, num_kv_heads=3, hidden_size=144, o_bias=True),
    "mistral": replace(_LLAMA, family="mistral", ropes=(RopeSpec(10_000.0),), layer_window=(WINDOW,) * 3),
    "qwen2": replace(
        _LLAMA, family="qwen2", qkv_bias=True, ropes=(RopeSpec(1e6),), layer_window=(None, WINDOW, WINDOW)
    ),
    "qwen3": replace(
        _LLAMA,
        family="qwen3",
        head_dim=32,
        attn_scale=32**-0.5,
        qk_norm=True,
        tied_embeddings=True,
        ropes=(RopeSpec(10_000.0, scaling="yarn", factor=4.0, original_max_positions=32),),
    ),
    "gemma3": replace(
        _LLAMA,
        family="gemma3",
        head_dim=32,
        attn_scale=24**-0.5,
        qk_norm=True,
        sandwich_norms=True,
        activation="gelu_tanh",
        tied_embeddings=True,
        embed_scale=96**0.5,
        ropes=(RopeSpec(1e6, scaling="linear", factor=8.0), RopeSpec(10_000.0)),
        layer_rope=(1, 1, 0),
        layer_window=(WINDOW, WINDOW, None),
    ),
}


def random_weights(
    spec: ModelSpec,
    seed: int = 0,
    weight_type: WeightType = WeightType.F32,
    quantize: Callable[[Float32s, str], NDArray[np.uint8]] | None = None,
) -> Weights:
    """Large enough that attention is far from uniform. Vectors are F32, matrices `weight_type` through `quantize`."""
    rng = np.random.default_rng(seed)
    weights: dict[str, WeightTensor] = {}
    for name, (rows, cols) in weight_shapes(spec).items():
        noise = rng.standard_normal((rows, cols), dtype=np.float32)
        if name.endswith("norm"):
            values, kind = 1 + 0.2 * noise, WeightType.F32
        elif rows == 1:
            values, kind = 0.5 * noise, WeightType.F32
        else:
            scale = cols**-0.25 if name == "embed" else 1.5 * cols**-0.5
            values, kind = scale * noise, weight_type
        data = values if kind == WeightType.F32 or quantize is None else quantize(values, kind)
        weights[name] = WeightTensor(name, kind, rows, cols, np.ascontiguousarray(data).view(np.uint8))
    return weights
