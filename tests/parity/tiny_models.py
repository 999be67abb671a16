"""Tiny random models of every family, as Transformers builds them: the right values come from its code, not from ours.

Sizes differ wherever a mix-up could hide (heads, head size, hidden), and weights are large enough that attention is far
from uniform: a wrong window, angle or norm then moves the logits by far more than the tolerance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCAB_SIZE = 160

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _rope(**settings: Any) -> dict[str, Any]:
    return {"rope_parameters": settings}


_LLAMA3 = _rope(
    rope_theta=500.0,
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
_YARN = _rope(rope_theta=10_000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
_LINEAR = _rope(rope_theta=10_000.0, rope_type="linear", factor=2.5)
_GEMMA_ROPES = _rope(
    full_attention={"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    sliding_attention={"rope_type": "default", "rope_theta": 10_000.0},
)
_SLIDING = {"sliding_window": 16}

#: name -> (Transformers' family, what differs from `_SIZES`).
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 6, "rms_norm_eps": 1e-6}),
    "llama3": ("Llama", _LLAMA3),
    "llama-linear": ("Llama", _LINEAR),
    "llama-yarn": ("Llama", _YARN),
    "llama-attention-bias": ("Llama", {"attention_bias": True}),
    "smollm2": (
        "Llama",
        {"tie_word_embeddings": True, "hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
    "mistral": ("Mistral", _SLIDING),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-sliding": ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1, **_SLIDING}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3": (
        "Gemma3Text",
        {
            "num_hidden_layers": 7,
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
            "sliding_window_pattern": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
            **_SLIDING,
            **_GEMMA_ROPES,
        },
    ),
}


def build(name: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """The model `name` in float32, random weights, in evaluation mode."""
    family, changes = CONFIGS[name]
    sizes = {**_SIZES, **changes, **overrides}
    if family == "Qwen2":
        del sizes["head_dim"]  # always hidden / heads there
    config = getattr(transformers, f"{family}Config")(**sizes)
    config._attn_implementation = "eager"
    causal = "Gemma3ForCausalLM" if family == "Gemma3Text" else f"{family}ForCausalLM"
    model: PreTrainedModel = getattr(transformers, causal)(config).eval()
    _randomise(model, torch.Generator().manual_seed(seed), norm_mean=0.0 if family == "Gemma3Text" else 1.0)
    return model


def save(name: str, directory: Path, seed: int = 0) -> PreTrainedModel:
    """Build `name` and write it as a Hugging Face directory."""
    model = build(name, seed)
    model.save_pretrained(directory)
    return model


def _randomise(model: PreTrainedModel, generator: torch.Generator, norm_mean: float) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.copy_(norm_mean + 0.2 * noise)
            elif weight.dim() == 1:
                weight.copy_(0.5 * noise)
            elif "embed" in name:
                weight.copy_(noise / weight.shape[1] ** 0.25)
            else:
                weight.copy_(1.5 * noise / weight.shape[1] ** 0.5)
