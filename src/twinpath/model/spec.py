"""What a decoder is, independent of where its numbers came from.

One `ModelSpec` describes Llama 2/3.x, SmolLM2, Mistral, Qwen2/2.5, Qwen3 and Gemma 3; readers of HF `config.json` and
of GGUF metadata build it, engines consume it. Readers normalise, so that engines need no family switch:
  - norm weights are the factor to multiply with (Gemma's 1 + w is added by the reader; GGUF files hold it already);
  - q and k rows are in rotate-half order (GGUF's interleaved llama order is un-permuted by the reader).

Canonical tensor names: `embed` [vocab, hidden]; per layer `layers.{i}.` + `attn_norm`, `q` `k` `v` `o` (rows =
outputs), optional `q_bias` `k_bias` `v_bias` `o_bias`, `q_norm` `k_norm` [head_dim], `post_attn_norm` (sandwich),
`mlp_norm`, `gate` `up` `down`, `post_mlp_norm` (sandwich); `final_norm`; `lm_head` (absent when tied to `embed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Guards the readers against absurd numbers in damaged files.
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One rotary embedding. `twinpath.model.rope` turns it into inverse frequencies once, in float64."""

    theta: float
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    #: YaRN: round the blended range outwards to whole pairs.
    truncate: bool = True
    #: Multiplies cos and sin; None: derived from `factor` where YaRN says so, else 1.
    attention_factor: float | None = None
    #: Per-frequency divisors given by the file (GGUF rope_freqs); overrides `scaling` when set.
    freq_factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape and arithmetic of one decoder-only model."""

    family: Literal["llama", "mistral", "qwen2", "qwen3", "gemma3"]
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    norm_eps: float
    tied_embeddings: bool
    activation: Literal["silu", "gelu_tanh"]
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    sandwich_norms: bool
    #: Multiplies the embedding row (Gemma: sqrt(hidden) rounded to the checkpoint's dtype).
    embed_scale: float
    #: Multiplies q.k before softmax.
    attn_scale: float
    #: Rotary embeddings; `layer_rope[i]` indexes this tuple.
    ropes: tuple[RopeSpec, ...]
    layer_rope: tuple[int, ...]
    #: Sliding window per layer in tokens (a query sees itself and window - 1 before it); None: full attention.
    layer_window: tuple[int | None, ...]
