"""Inverse frequencies and cos/sin factors against Transformers' own functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from twinpath.model.rope import cos_sin_scale, inverse_frequencies
from twinpath.model.spec import RopeSpec

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def right(head_dim: int, theta: float, kind: str, **settings: Any) -> tuple[np.ndarray, float]:
    parameters = {"rope_type": kind, "rope_theta": theta, **settings}
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, rope_parameters=parameters)
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, device=None)
    return frequencies.double().numpy(), float(factor)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    ("spec", "kind", "settings"),
    [
        (RopeSpec(1e4, scaling="linear", factor=4.0), "linear", {"factor": 4.0}),
        (RopeSpec(5e5, scaling="llama3", factor=8.0, original_max_positions=8192), "llama3", LLAMA3),
        (
            RopeSpec(1e6, scaling="yarn", factor=4.0, original_max_positions=32768),
            "yarn",
            {"factor": 4.0, "original_max_position_embeddings": 32768},
        ),
        (
            RopeSpec(
                1.5e5,
                scaling="yarn",
                factor=32.0,
                original_max_positions=4096,
                beta_fast=16.0,
                beta_slow=2.0,
                truncate=False,
            ),
            "yarn",
            {
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
            },
        ),
    ],
    ids=["linear", "llama3", "yarn", "yarn-not-truncated"],
)
def test_as_transformers(head_dim: int, spec: RopeSpec, kind: str, settings: dict[str, Any]) -> None:
    frequencies, factor = right(head_dim, spec.theta, kind, **settings)
    ours = inverse_frequencies(spec, head_dim)
    assert ours.dtype == np.float64
    # Transformers computes in float32.
    np.testing.assert_allclose(ours, frequencies, rtol=2e-6)
    assert cos_sin_scale(spec) == pytest.approx(factor, rel=1e-12)


def test_plain_formula() -> None:
    ours = inverse_frequencies(RopeSpec(10_000.0), 8)
    assert ours.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-15)
    assert cos_sin_scale(RopeSpec(10_000.0)) == 1.0


def test_attention_factor_given_wins() -> None:
    spec = RopeSpec(1e6, scaling="yarn", factor=4.0, original_max_positions=32768, attention_factor=0.75)
    assert cos_sin_scale(spec) == 0.75


def test_file_factors_divide() -> None:
    spec = RopeSpec(10_000.0, freq_factors=(1.0, 2.0, 4.0, 8.0))
    assert inverse_frequencies(spec, 8).tolist() == pytest.approx([1.0, 0.05, 0.0025, 0.000125], rel=1e-15)
