"""The door to spec and weights: names, shapes, row order, norms; directories and GGUF."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from twinpath.errors import ModelLoadError
from twinpath.model.dequant import dequantize
from twinpath.model.files import ModelFiles, files_at
from twinpath.model.gguf import GgufFile
from twinpath.model.safetensors import INDEX_NAME, SINGLE_NAME
from twinpath.model.tensors import WeightType
from twinpath.model.weights import load_weights, read_spec

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "vocab_size": 11,
}
Tensors = dict[str, torch.Tensor]


def llama_tensors() -> Tensors:
    torch.manual_seed(1)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (11, 16),
        "model.norm.weight": (16,),
        "lm_head.weight": (11, 16),
    }
    for layer in (0, 1):
        at = f"model.layers.{layer}."
        shapes |= {
            at + "input_layernorm.weight": (16,),
            at + "post_attention_layernorm.weight": (16,),
            at + "self_attn.q_proj.weight": (16, 16),
            at + "self_attn.k_proj.weight": (8, 16),
            at + "self_attn.v_proj.weight": (8, 16),
            at + "self_attn.o_proj.weight": (16, 16),
            at + "mlp.gate_proj.weight": (24, 16),
            at + "mlp.up_proj.weight": (24, 16),
            at + "mlp.down_proj.weight": (16, 24),
        }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def directory(path: Path, tensors: Tensors, **changes: Any) -> ModelFiles:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / SINGLE_NAME)
    return files_at(path)


def values(files: ModelFiles, name: str) -> np.ndarray:
    return dequantize(load_weights(files, read_spec(files))[name])


def test_names_and_values_of_a_directory(tmp_path: Path) -> None:
    tensors = llama_tensors()
    files = directory(tmp_path / "m", tensors)
    weights = load_weights(files, read_spec(files))
    assert len(weights) == len(tensors) == len(set(weights))
    for name, theirs in [
        ("embed", "model.embed_tokens.weight"),
        ("lm_head", "lm_head.weight"),
        ("layers.1.q", "model.layers.1.self_attn.q_proj.weight"),
        ("layers.0.down", "model.layers.0.mlp.down_proj.weight"),
    ]:
        assert np.array_equal(dequantize(weights[name]), tensors[theirs].numpy())
    assert weights["layers.0.mlp_norm"].name == "layers.0.mlp_norm"
    assert np.array_equal(
        dequantize(weights["layers.0.mlp_norm"])[0], tensors["model.layers.0.post_attention_layernorm.weight"].numpy()
    )


def test_shards_give_the_same(tmp_path: Path) -> None:
    tensors = llama_tensors()
    whole = directory(tmp_path / "whole", tensors)
    split = directory(tmp_path / "split", tensors)
    (split.path / SINGLE_NAME).unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for part, held in parts.items():
        save_file({name: tensors[name] for name in held}, split.path / part)
    weight_map = {name: part for part, held in parts.items() for name in held}
    (split.path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    spec = read_spec(whole)
    right, ours = load_weights(whole, spec), load_weights(split, spec)
    assert all(np.array_equal(right[name].data, ours[name].data) for name in right)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_stay_as_they_lie(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in llama_tensors().items()}
    files = directory(tmp_path / "m", tensors)
    tensor = load_weights(files, read_spec(files))["layers.0.up"]
    assert tensor.type == {torch.float16: WeightType.F16, torch.bfloat16: WeightType.BF16}[dtype]
    assert np.array_equal(dequantize(tensor), tensors["model.layers.0.mlp.up_proj.weight"].float().numpy())


def without(tensors: Tensors, name: str) -> Tensors:
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: without(t, "model.layers.1.mlp.up_proj.weight"), "'model.layers.1.mlp.up_proj.weight' is missing"),
        (lambda t: t | {"model.norm.weight": torch.ones(15)}, r"'model.norm.weight' is \[1, 15\], expected \[1, 16\]"),
        (lambda t: t | {"model.layers.0.self_attn.q_proj.bias": torch.ones(16)}, "unexpected tensor"),
        (lambda t: t | {"model.norm.weight": torch.ones(16).to(torch.float8_e4m3fn)}, "has dtype 'F8_E4M3'"),
    ],
    ids=["missing", "shape", "extra", "fp8"],
)
def test_mismatches_are_named(tmp_path: Path, change: Callable[[Tensors], Tensors], says: str) -> None:
    files = directory(tmp_path / "m", change(llama_tensors()))
    with pytest.raises(ModelLoadError, match=says):
        load_weights(files, read_spec(files))


def test_tied_models_may_carry_a_head_and_old_ones_frequencies(tmp_path: Path) -> None:
    tensors = llama_tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    files = directory(tmp_path / "m", tensors, tie_word_embeddings=True)
    assert "lm_head" not in load_weights(files, read_spec(files))


def gemma(path: Path, prefix: Callable[[str], str], extra: Tensors) -> tuple[ModelFiles, Tensors]:
    tensors = without(llama_tensors(), "lm_head.weight")
    for layer in (0, 1):
        at = f"model.layers.{layer}."
        for name, size in [
            ("pre_feedforward_layernorm", 16),
            ("post_feedforward_layernorm", 16),
            ("self_attn.q_norm", 4),
            ("self_attn.k_norm", 4),
        ]:
            tensors[f"{at}{name}.weight"] = torch.randn(size)
    text = {key: CONFIG[key] for key in CONFIG if key not in ("architectures", "model_type", "tie_word_embeddings")}
    text |= {"head_dim": 4, "sliding_window": 8, "model_type": "gemma3_text"}
    outer = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    return directory(path, {prefix(name): tensor for name, tensor in tensors.items()} | extra, **outer), tensors


@pytest.mark.parametrize(
    "prefix",
    [
        lambda name: name,
        lambda name: f"language_model.{name}",
        lambda name: name.replace("model.", "model.language_model.", 1),
    ],
    ids=["text", "older-multimodal", "newer-multimodal"],
)
def test_gemma_norms_become_factors_under_every_prefix(tmp_path: Path, prefix: Callable[[str], str]) -> None:
    vision = {} if prefix("x") == "x" and prefix("model.") == "model." else {"vision_tower.a": torch.ones(2)}
    files, tensors = gemma(tmp_path / "m", prefix, vision)
    weights = load_weights(files, read_spec(files))
    for ours, theirs in [
        ("layers.0.post_attn_norm", "model.layers.0.post_attention_layernorm.weight"),
        ("layers.1.mlp_norm", "model.layers.1.pre_feedforward_layernorm.weight"),
        ("layers.0.q_norm", "model.layers.0.self_attn.q_norm.weight"),
        ("final_norm", "model.norm.weight"),
    ]:
        assert np.array_equal(dequantize(weights[ours])[0], 1.0 + tensors[theirs].numpy())
    assert np.array_equal(dequantize(weights["layers.0.up"]), tensors["model.layers.0.mlp.up_proj.weight"].numpy())


def permuted(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py, verbatim."""
    return (
        rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    )


def llama_gguf(path: Path, arch: str, kind: gguf.GGMLQuantizationType) -> dict[str, np.ndarray]:
    """One layer, biases on q; returns the values in HF's order, as the quantised file means them."""
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(64)
    shapes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "output": (64, 64)}
    matrices = {f"blk.0.attn_{name}.weight": shape for name, shape in shapes.items()}
    matrices |= {"blk.0.ffn_gate.weight": (96, 64), "blk.0.ffn_up.weight": (96, 64), "blk.0.ffn_down.weight": (64, 96)}
    matrices |= {"token_embd.weight": (7, 64)}
    right = {}
    heads = {"blk.0.attn_q": 4, "blk.0.attn_k": 2} if arch == "llama" else {}
    for name, shape in matrices.items():
        data = gguf.quants.quantize(rng.standard_normal(shape).astype(np.float32), kind)
        right[name] = gguf.quants.dequantize(data, kind)
        num_heads = heads.get(name.removesuffix(".weight"))
        writer.add_tensor(name, permuted(data, num_heads) if num_heads else data, raw_dtype=kind)
    vectors = {"output_norm.weight": 64, "blk.0.attn_norm.weight": 64, "blk.0.ffn_norm.weight": 64}
    vectors |= {"blk.0.attn_q.bias": 64, "blk.0.attn_k.bias": 32, "blk.0.attn_v.bias": 32}
    for name, size in vectors.items():
        right[name] = rng.standard_normal(size).astype(np.float32)
        num_heads = heads.get(name.removesuffix(".bias"))
        writer.add_tensor(name, permuted(right[name], num_heads) if num_heads else right[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return right


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_gguf_rows_are_in_rotate_half_order(tmp_path: Path, arch: str, kind: str) -> None:
    path = tmp_path / "model.gguf"
    right = llama_gguf(path, arch, gguf.GGMLQuantizationType[kind])
    files = files_at(path)
    weights = load_weights(files, read_spec(files))
    for ours, theirs in [
        ("layers.0.q", "blk.0.attn_q.weight"),
        ("layers.0.k", "blk.0.attn_k.weight"),
        ("layers.0.v", "blk.0.attn_v.weight"),
        ("layers.0.down", "blk.0.ffn_down.weight"),
        ("embed", "token_embd.weight"),
    ]:
        assert weights[ours].type == kind
        assert np.array_equal(dequantize(weights[ours]), right[theirs])
    for name in ("q", "k", "v"):
        assert np.array_equal(dequantize(weights[f"layers.0.{name}_bias"])[0], right[f"blk.0.attn_{name}.bias"])


def test_gguf_with_a_tensor_too_few_or_too_many(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    llama_gguf(path, "llama", gguf.GGMLQuantizationType.F32)
    content = path.read_bytes()
    assert content.count(b"blk.0.ffn_up.weight") == 1
    path.write_bytes(content.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_XX.weight"))
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.ffn_up\.weight' is missing"):
        load_weights(files_at(path), read_spec(files_at(path)))
    path.write_bytes(content.replace(b"blk.0.attn_q.bias", b"blk.0.attn_Q.bias"))
    with pytest.raises(ModelLoadError, match=r"unexpected tensor 'blk\.0\.attn_"):
        load_weights(files_at(path), read_spec(files_at(path)))


@pytest.mark.model
def test_default_model_loads_without_copying(default_model_path: Path) -> None:
    files = files_at(default_model_path)
    weights = load_weights(files, read_spec(files))
    assert len(weights) == 272
    file = GgufFile(default_model_path)
    assert np.array_equal(weights["layers.7.up"].data, file.tensor("blk.7.ffn_up.weight").data)
    assert not weights["layers.7.up"].data.flags.owndata


def test_heads_must_divide(tmp_path: Path) -> None:
    files = directory(tmp_path / "m", llama_tensors(), num_key_value_heads=3)
    with pytest.raises(ModelLoadError, match="4 heads cannot share 3"):
        read_spec(files)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"neither config\.json nor a GGUF file"):
        files_at(tmp_path)
    with pytest.raises(ModelLoadError, match="no such file"):
        files_at(tmp_path / "gone")
    (tmp_path / "x.safetensors").touch()
    with pytest.raises(ModelLoadError, match="name the directory"):
        files_at(tmp_path / "x.safetensors")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelLoadError, match="holds 2 GGUF files"):
        files_at(tmp_path)
    (tmp_path / "b.gguf").unlink()
    assert files_at(tmp_path) == ModelFiles(tmp_path / "a.gguf", "gguf")
