"""Specs from GGUF metadata, as llama.cpp reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from twinpath.errors import ModelLoadError
from twinpath.model.gguf import GgufFile
from twinpath.model.gguf_spec import spec_from_gguf
from twinpath.model.spec import ModelSpec, RopeSpec

BASE: Mapping[str, Any] = {
    "block_count": 6,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "context_length": 4096,
    "rope.freq_base": 500000.0,
}


def write(path: Path, arch: str, extra: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> GgufFile:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**BASE, **extra}.items():
        if value is None:
            continue
        name = f"{arch}.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_uint32(name, value)
    for name, tensor in {"token_embd.weight": np.zeros((10, 256), np.float32), **tensors}.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def spec_of(tmp_path: Path, arch: str, tensors: Mapping[str, np.ndarray] | None = None, **extra: Any) -> ModelSpec:
    return spec_from_gguf(
        write(tmp_path / "model.gguf", arch, {k.replace("__", "."): v for k, v in extra.items()}, tensors or {})
    )


def vector(size: int) -> np.ndarray:
    return np.ones(size, np.float32)


@pytest.mark.model
def test_default_model(default_model_path: Path) -> None:
    spec = spec_from_gguf(GgufFile(default_model_path))
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 576, 9, 3, 64)
    assert (spec.vocab_size, spec.max_position, spec.intermediate_size) == (49152, 8192, 1536)
    assert spec.ropes == (RopeSpec(100000.0),) and spec.tied_embeddings


def test_llama(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "llama", {"output.weight": np.zeros((10, 256), np.float32)})
    assert spec.family == "llama" and spec.head_dim == 64 and spec.vocab_size == 10
    assert not spec.tied_embeddings and not spec.qkv_bias and not spec.qk_norm
    assert spec.ropes == (RopeSpec(500000.0),)
    assert spec.attn_scale == 0.125 and spec.embed_scale == 1.0


def test_qwen2_bias_is_seen_in_the_tensors(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "qwen2", {"blk.0.attn_q.bias": vector(256)}, attention__sliding_window=128)
    assert spec.qkv_bias and not spec.o_bias
    assert spec.layer_window == (None,) * 6


def test_qwen3_has_head_norms_and_its_own_head_size(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "qwen3", attention__key_length=128, attention__value_length=128)
    assert spec.qk_norm and spec.head_dim == 128


def test_llama3_factors_come_from_their_tensor(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    [rope] = spec_of(tmp_path, "llama", {"rope_freqs.weight": factors}).ropes
    assert rope.freq_factors == tuple(factors.tolist()) and rope.theta == 500000.0


def test_yarn_as_llama_cpp(tmp_path: Path) -> None:
    """llama.cpp multiplies attn_factor with 1 + 0.1 ln(factor)."""
    settings = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 1024,
        "rope__scaling__attn_factor": 0.5,
    }
    [rope] = spec_of(tmp_path, "qwen2", **settings).ropes
    assert (rope.scaling, rope.factor, rope.original_max_positions) == ("yarn", 4.0, 1024)
    assert rope.attention_factor == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))


def test_gemma3(tmp_path: Path) -> None:
    settings = {"attention__sliding_window": 512, "rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    spec = spec_of(tmp_path, "gemma3", **settings)
    assert spec.ropes == (RopeSpec(500000.0, scaling="linear", factor=8.0), RopeSpec(10_000.0))
    assert spec.layer_window == (512, 512, 512, 512, 512, None)
    assert spec.layer_rope == (1, 1, 1, 1, 1, 0)
    assert spec.embed_scale == 16.0 and spec.activation == "gelu_tanh" and spec.sandwich_norms and spec.qk_norm


@pytest.mark.parametrize("pattern", [2, [True, False, True, False, True, False]])
def test_gemma3_pattern_from_the_file(tmp_path: Path, pattern: object) -> None:
    settings = {"attention__sliding_window": 512, "attention__sliding_window_pattern": pattern}
    assert spec_of(tmp_path, "gemma3", **settings).layer_window == (512, None) * 3


def test_gemma3_27b_scales_attention_by_hidden_size_per_head(tmp_path: Path) -> None:
    extra = {"block_count": 62, "attention__key_length": 32, "attention__value_length": 32}
    assert spec_of(tmp_path, "gemma3", **extra).attn_scale == 64**-0.5


@pytest.mark.parametrize(
    ("arch", "extra", "says"),
    [
        ("gpt2", {}, "architecture 'gpt2' is not supported"),
        ("llama", {"block_count": None}, "'llama.block_count' is missing"),
        ("llama", {"block_count": 0}, "'llama.block_count' is 0"),
        ("llama", {"block_count": 4_000_000_000}, "'llama.block_count' is 4000000000"),
        ("llama", {"block_count": 2_000_000}, "at most 1024"),
        ("llama", {"rope__freq_base": float("nan")}, "'llama.rope.freq_base' is nan"),
        ("llama", {"expert_count": 8}, "mixture-of-experts"),
        ("llama", {"rope__dimension_count": 32}, "partial rotary embedding (32 of 64"),
        ("llama", {"rope__scaling__type": "longrope"}, "rope scaling 'longrope'"),
        ("llama", {"attention__value_length": 32}, "key_length and value_length differ"),
        ("llama", {"attention__head_count_kv": [1, 2, 1, 2, 1, 2]}, "varies by layer"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("gemma3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True]}, "must have 6 items"),
    ],
)
def test_refused_by_name(tmp_path: Path, arch: str, extra: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        spec_of(tmp_path, arch, **extra)
    assert says in str(caught.value) and str(tmp_path) in str(caught.value)


def test_bad_factors_are_refused(tmp_path: Path) -> None:
    for factors in (vector(31), np.zeros(32, np.float32)):
        with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight"):
            spec_of(tmp_path, "llama", {"rope_freqs.weight": factors})
