"""Rotary embeddings: `RopeSpec` -> inverse frequencies, computed once in float64.

Formulas as in Transformers' `modeling_rope_utils` (default, linear, llama3, yarn); the tests compare with it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from twinpath.model.spec import RopeSpec

Float64s = NDArray[np.float64]


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Float64s:
    """Angle per position of each rotated pair.

    Shapes: float64 [head_dim // 2]; pair i is (x[i], x[i + head_dim // 2]).
    """
    frequencies = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.freq_factors is not None:
        return frequencies / np.asarray(rope.freq_factors, dtype=np.float64)
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "llama3":
        return _llama3(frequencies, rope)
    if rope.scaling == "yarn":
        return _yarn(frequencies, rope, head_dim)
    return frequencies


def cos_sin_scale(rope: RopeSpec) -> float:
    """Factor on cos and sin (YaRN's attention factor; 1 elsewhere)."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.scaling == "yarn" and rope.factor > 1:
        return 0.1 * math.log(rope.factor) + 1.0
    return 1.0


def _llama3(frequencies: Float64s, rope: RopeSpec) -> Float64s:
    """Long wavelengths are slowed by `factor`, short ones kept, those between blended."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def _yarn(frequencies: Float64s, rope: RopeSpec, head_dim: int) -> Float64s:
    """Source: https://arxiv.org/abs/2309.00071, section 3.2."""

    def pair_that_turns(num_turns: float) -> float:
        return head_dim * math.log(rope.original_max_positions / (num_turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    slowed: Float64s = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    return frequencies / rope.factor * slowed + frequencies * (1 - slowed)
