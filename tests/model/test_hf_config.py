"""Specs from config.json: Transformers' own config objects are the oracle for windows and rotary settings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import transformers

from twinpath.errors import ModelLoadError
from twinpath.model.hf_config import spec_from_config
from twinpath.model.spec import MAX_LAYERS, ModelSpec, RopeSpec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
LLAMA3_SCALING = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
QWEN2: dict[str, Any] = {
    **LLAMA,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 6,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "sliding_window": 4096,
    "max_window_layers": 4,
    "use_sliding_window": False,
}
#: As the hub's Gemma 3 checkpoints: most of it left to the config class.
GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 8,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}


def spec_of(tmp_path: Path, config: dict[str, Any], **changes: Any) -> ModelSpec:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in {**config, **changes}.items() if value != "absent"}))
    return spec_from_config(path)


def refusal(tmp_path: Path, config: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        spec_of(tmp_path, config, **changes)
    assert str(tmp_path / "config.json") in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_llama_3(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, LLAMA, rope_scaling=LLAMA3_SCALING)
    assert spec == ModelSpec(
        family="llama",
        num_layers=4,
        hidden_size=2048,
        intermediate_size=8192,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        vocab_size=128256,
        max_position=131072,
        norm_eps=1e-5,
        tied_embeddings=True,
        activation="silu",
        qkv_bias=False,
        o_bias=False,
        qk_norm=False,
        sandwich_norms=False,
        embed_scale=1.0,
        attn_scale=0.125,
        ropes=(RopeSpec(500000.0, scaling="llama3", factor=32.0, original_max_positions=8192),),
        layer_rope=(0, 0, 0, 0),
        layer_window=(None,) * 4,
    )


def test_llama_2_defaults(tmp_path: Path) -> None:
    """A Llama 2 config has no key-value heads, head size, rope base or tying of its own."""
    absent = dict.fromkeys(("num_key_value_heads", "head_dim", "rope_theta", "tie_word_embeddings"), "absent")
    spec = spec_of(tmp_path, LLAMA, **absent)
    assert (spec.num_kv_heads, spec.head_dim, spec.tied_embeddings) == (32, 64, False)
    assert spec.ropes == (RopeSpec(10_000.0),)


def test_attention_bias_means_all_four(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, LLAMA, attention_bias=True)
    assert spec.qkv_bias and spec.o_bias


@pytest.mark.parametrize(("window", "expected"), [(4096, (4096,) * 4), (None, (None,) * 4)])
def test_mistral_slides_everywhere_or_nowhere(
    tmp_path: Path, window: int | None, expected: tuple[int | None, ...]
) -> None:
    changes = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    assert spec_of(tmp_path, LLAMA, **changes).layer_window == expected


def test_qwen2_has_biases_and_ignores_a_window_that_is_off(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, QWEN2)
    assert spec.qkv_bias and not spec.o_bias and not spec.qk_norm
    assert spec.layer_window == (None,) * 6


def test_qwen2_slides_from_max_window_layers_on(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, QWEN2, use_sliding_window=True)
    kinds = transformers.Qwen2Config(**{**QWEN2, "use_sliding_window": True}).layer_types
    assert [window is not None for window in spec.layer_window] == [kind == "sliding_attention" for kind in kinds]
    assert spec.layer_window == (None,) * 4 + (4096,) * 2


def test_qwen3(tmp_path: Path) -> None:
    changes = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "attention_bias": False}
    spec = spec_of(tmp_path, QWEN2, **changes)
    assert spec.qk_norm and not spec.qkv_bias and spec.head_dim == 128
    assert spec.attn_scale == 128**-0.5


def test_yarn_widens_the_window(tmp_path: Path) -> None:
    """Qwen's advice for long texts: rope_scaling is added, max_position_embeddings stays."""
    scaling = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
    spec = spec_of(tmp_path, QWEN2, rope_scaling=scaling)
    assert spec.max_position == 131072
    assert spec.ropes == (RopeSpec(1e6, scaling="yarn", factor=4.0, original_max_positions=32768),)


def test_yarn_magnitude_settings(tmp_path: Path) -> None:
    scaling = {"factor": 40, "original_max_position_embeddings": 4096, "rope_type": "yarn"}
    scaling |= {"mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 16, "truncate": False}
    [rope] = spec_of(tmp_path, QWEN2, rope_scaling=scaling).ropes
    assert rope.attention_factor == pytest.approx((0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1))
    assert rope.beta_fast == 16.0 and rope.truncate is False


@pytest.mark.parametrize("config", [LLAMA | {"rope_scaling": LLAMA3_SCALING}, QWEN2])
def test_transformers_5_spelling_says_the_same(tmp_path: Path, config: dict[str, Any]) -> None:
    classes = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}
    new = json.loads(classes[config["model_type"]](**config).to_json_string(use_diff=False))
    assert "rope_parameters" in new and "rope_theta" not in new
    assert spec_of(tmp_path, {**new, "architectures": config["architectures"]}) == spec_of(tmp_path, config)


def test_gemma_3_with_everything_left_out(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GEMMA3)
    right = transformers.Gemma3TextConfig(**GEMMA3["text_config"])
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (8, 4, 256)
    assert (spec.vocab_size, spec.max_position, spec.norm_eps) == (262_208, 131_072, 1e-6)
    assert spec.tied_embeddings and spec.sandwich_norms and spec.qk_norm and spec.activation == "gelu_tanh"
    assert spec.attn_scale == right.query_pre_attn_scalar**-0.5
    assert spec.ropes == (RopeSpec(1e6, scaling="linear", factor=8.0, original_max_positions=131_072), RopeSpec(1e4))
    local = [kind == "sliding_attention" for kind in right.layer_types]
    assert spec.layer_window == tuple(1024 if is_local else None for is_local in local)
    assert spec.layer_rope == tuple(map(int, local))
    # sqrt(2560) = 50.5964..., of which bfloat16 keeps 50.5.
    assert spec.embed_scale == 50.5


def test_gemma_3_text_in_the_new_spelling(tmp_path: Path) -> None:
    config = transformers.Gemma3TextConfig(**GEMMA3["text_config"], dtype="float32")
    new = json.loads(config.to_json_string(use_diff=False)) | {"architectures": ["Gemma3ForCausalLM"]}
    spec = spec_of(tmp_path, new)
    assert spec.ropes[0].factor == 8.0 and spec.ropes[1].theta == 1e4
    assert spec.layer_window[5] is None and spec.layer_window[4] == 1024
    assert spec.embed_scale == math.sqrt(2560)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "mamba2"}, "model_type 'mamba2' is not supported"),
        ({"model_type": None}, "model_type None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "is not a causal language model"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "'awq'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "'fp8'"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"mlp_bias": True}, "'mlp_bias' is set"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is None"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "'factor' is -1"),
        ({"rope_scaling": "linear"}, "must be JSON objects"),
        ({"partial_rotary_factor": 0.5}, "partial rotary embedding"),
        ({"hidden_size": "absent"}, "'hidden_size' is None"),
        ({"hidden_size": 0}, "'hidden_size' is 0"),
        ({"hidden_size": 1e400}, "'hidden_size' is inf"),
        ({"vocab_size": True}, "'vocab_size' is True"),
        ({"num_hidden_layers": 10**9}, f"at most {MAX_LAYERS}"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
        ({"tie_word_embeddings": "yes"}, "expected true or false"),
    ],
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    assert says in refusal(tmp_path, LLAMA, **changes)


def test_gemma_softcapping_is_refused(tmp_path: Path) -> None:
    text = GEMMA3["text_config"] | {"final_logit_softcapping": 30.0}
    assert "'text_config.final_logit_softcapping' is set" in refusal(tmp_path, GEMMA3, text_config=text)


def test_layer_types_of_another_kind_are_refused(tmp_path: Path) -> None:
    kinds = ["full_attention"] * 5 + ["chunked_attention"]
    assert "'chunked_attention' is not supported" in refusal(tmp_path, QWEN2, layer_types=kinds)
    assert "must list 6 layers" in refusal(tmp_path, QWEN2, layer_types=kinds[:5])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_not_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        spec_from_config(path)
