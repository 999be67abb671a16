"""Writes a Transformers model as GGUF the way llama.cpp's converter does, with the `gguf` package.

Source: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py (permuted rows, norms + 1, rope_freqs).
"""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray
from transformers import PreTrainedModel

from parity.k_quants import quantize

Floats = NDArray[np.float32]

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
_GGUF_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
}


def write_gguf(model: PreTrainedModel, path: Path, tensor_type: str = "F32") -> None:
    """Matrices in `tensor_type`, vectors in F32. The model's own weights become what the file's stand for."""
    config = model.config
    architecture = _ARCHITECTURES[config.model_type]
    writer = GGUFWriter(path, architecture)
    _write_metadata(writer, model, architecture)
    names = gguf.get_tensor_name_map(_GGUF_ARCHITECTURES[architecture], config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        values: Floats = parameter.detach().numpy()
        stem, _, suffix = name.rpartition(".")
        new_name = f"{names.get_name(stem)}.{suffix}"
        if values.ndim == 2:
            kind = GGMLQuantizationType[tensor_type]
            data = quantize(values, tensor_type)
            values[:] = gguf.quants.dequantize(data, kind)
            writer.add_tensor(new_name, _reorder(name, data, config, architecture), raw_dtype=kind)
        else:
            data = values + 1 if architecture == "gemma3" and "norm" in name else values
            writer.add_tensor(new_name, _reorder(name, data, config, architecture))
    if config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: GGUFWriter, model: PreTrainedModel, architecture: str) -> None:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    ropes = config.rope_parameters
    if architecture == "gemma3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        ropes = ropes["full_attention"]
    writer.add_rope_freq_base(ropes["rope_theta"])
    if ropes["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(ropes["factor"])
    if ropes["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(ropes["factor"])
        writer.add_rope_scaling_orig_ctx_len(ropes["original_max_position_embeddings"])


def _reorder(name: str, data: NDArray[np.generic], config: object, architecture: str) -> NDArray[np.generic]:
    """llama.cpp rotates neighbours, so llama's q and k rows are interleaved (`LlamaModel.permute`)."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if architecture != "llama" or heads is None:
        return data
    num_heads = getattr(config, heads)
    halves = data.reshape(num_heads, 2, data.shape[0] // num_heads // 2, *data.shape[1:])
    return halves.swapaxes(1, 2).reshape(data.shape)


def _llama3_divisors(config: object) -> Floats:
    """`LlamaModel.generate_extra_tensors`."""
    rope = config.rope_parameters  # type: ignore[attr-defined]
    dim = config.head_dim  # type: ignore[attr-defined]
    low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / dim)
        if wavelength < old / high:
            divisors.append(1.0)
        elif wavelength > old / low:
            divisors.append(rope["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)
