"""A decoder in plain numpy, float64, one sequence, no cache: the independent right answer for a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinpath.model.dequant import dequantize
from twinpath.model.rope import cos_sin_scale, inverse_frequencies
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights

Floats = NDArray[np.float64]


def hidden_states(spec: ModelSpec, weights: Weights, tokens: list[int]) -> list[Floats]:
    """Residual stream [tokens, hidden] before each layer, and after the last."""
    x = _matrix(weights, "embed")[tokens] * spec.embed_scale
    states = [x]
    for layer in range(spec.num_layers):
        x = _layer(spec, weights, layer, x)
        states.append(x)
    return states


def logits(spec: ModelSpec, weights: Weights, tokens: list[int]) -> Floats:
    """[tokens, vocab]"""
    x = _norm(hidden_states(spec, weights, tokens)[-1], _vector(weights, "final_norm"), spec.norm_eps)
    return x @ _matrix(weights, "embed" if spec.tied_embeddings else "lm_head").T


def _layer(spec: ModelSpec, weights: Weights, layer: int, x: Floats) -> Floats:
    prefix = f"layers.{layer}."
    h = _norm(x, _vector(weights, prefix + "attn_norm"), spec.norm_eps)
    out = _project(weights, prefix + "o", _attention(spec, weights, layer, h))
    if spec.sandwich_norms:
        out = _norm(out, _vector(weights, prefix + "post_attn_norm"), spec.norm_eps)
    x = x + out
    h = _norm(x, _vector(weights, prefix + "mlp_norm"), spec.norm_eps)
    gate, up = _project(weights, prefix + "gate", h), _project(weights, prefix + "up", h)
    if spec.activation == "silu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    out = _project(weights, prefix + "down", gate * up)
    if spec.sandwich_norms:
        out = _norm(out, _vector(weights, prefix + "post_mlp_norm"), spec.norm_eps)
    return x + out


def _attention(spec: ModelSpec, weights: Weights, layer: int, h: Floats) -> Floats:
    prefix, num_tokens = f"layers.{layer}.", len(h)
    q = _project(weights, prefix + "q", h).reshape(num_tokens, spec.num_heads, spec.head_dim)
    k = _project(weights, prefix + "k", h).reshape(num_tokens, spec.num_kv_heads, spec.head_dim)
    v = _project(weights, prefix + "v", h).reshape(num_tokens, spec.num_kv_heads, spec.head_dim)
    if spec.qk_norm:
        q = _norm(q, _vector(weights, prefix + "q_norm"), spec.norm_eps)
        k = _norm(k, _vector(weights, prefix + "k_norm"), spec.norm_eps)
    q, k = _rotate(spec, layer, q), _rotate(spec, layer, k)
    shared = spec.num_heads // spec.num_kv_heads
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * spec.attn_scale
    distance = np.arange(num_tokens)[:, None] - np.arange(num_tokens)[None]
    window = spec.layer_window[layer]
    seen = (distance >= 0) & (distance < (window or num_tokens + 1))
    scores = np.where(seen, scores, -np.inf)
    weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weight /= weight.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weight, v).reshape(num_tokens, -1)


def _rotate(spec: ModelSpec, layer: int, x: Floats) -> Floats:
    rope = spec.ropes[spec.layer_rope[layer]]
    angle = np.arange(len(x))[:, None, None] * inverse_frequencies(rope, spec.head_dim)
    cos, sin = np.cos(angle) * cos_sin_scale(rope), np.sin(angle) * cos_sin_scale(rope)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _norm(x: Floats, factor: Floats, eps: float) -> Floats:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * factor


def _project(weights: Weights, name: str, x: Floats) -> Floats:
    y = x @ _matrix(weights, name).T
    return y + _vector(weights, name + "_bias") if name + "_bias" in weights else y


def _matrix(weights: Weights, name: str) -> Floats:
    return dequantize(weights[name]).astype(np.float64)


def _vector(weights: Weights, name: str) -> Floats:
    return _matrix(weights, name)[0]
