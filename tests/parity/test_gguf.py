"""The same models through GGUF files: every architecture in F32, every block format on one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from parity import tiny_models
from parity.gguf_writing import write_gguf
from parity.k_quants import quantize
from parity.reference_rows import ReferenceRows, open_model, relative_error
from parity.test_transformers import TOLERANCE, random_sequences, right_logits
from twinpath.model.tensors import BLOCK_LAYOUT, WeightType

#: GGUF cannot say that only some layers of a Qwen2 slide, nor what Gemma's scale is unless it is the head size.
_ARCHITECTURES = [name for name in tiny_models.CONFIGS if name != "qwen2-sliding"]
_OVERRIDES = {"gemma3": {"query_pre_attn_scalar": 32}}
#: Columns everywhere a multiple of the K formats' 256.
_WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


@pytest.mark.parametrize("name", _ARCHITECTURES)
def test_every_architecture(name: str, tmp_path: Path) -> None:
    model = tiny_models.build(name, **_OVERRIDES.get(name, {}))
    write_gguf(model, tmp_path / "model.gguf")
    reference = ReferenceRows(*open_model(tmp_path / "model.gguf"))
    sequences = random_sequences(75, 20)
    for tokens, logits in zip(sequences, reference.logits(sequences, 17), strict=True):
        assert relative_error(logits, right_logits(model, tokens)) <= TOLERANCE


@pytest.mark.parametrize("tensor_type", list(WeightType))
def test_every_format(tensor_type: WeightType, tmp_path: Path) -> None:
    model = tiny_models.build("llama3", num_hidden_layers=2, **_WIDE)
    write_gguf(model, tmp_path / "model.gguf", tensor_type)
    reference = ReferenceRows(*open_model(tmp_path / "model.gguf"))
    (tokens,) = random_sequences(40)
    (logits,) = reference.logits([tokens])
    assert relative_error(logits, right_logits(model, tokens)) <= TOLERANCE


@pytest.mark.parametrize("tensor_type", [t for t in WeightType if BLOCK_LAYOUT[t][0] > 1])
def test_the_tests_own_quantisers_lose_little(tensor_type: WeightType) -> None:
    values = np.random.default_rng(0).standard_normal((8, 512), dtype=np.float32)
    decoded = quants.dequantize(quantize(values, tensor_type), GGMLQuantizationType[tensor_type])
    bits = 8 * BLOCK_LAYOUT[tensor_type][1] / BLOCK_LAYOUT[tensor_type][0]
    # Uniform quantisation of a normal distribution: half a step of a range of about 2 x 3.5 sigma in 2 ** bits steps.
    assert np.sqrt(np.mean((decoded - values) ** 2)) < 7 / 2 ** (int(bits) - 0.5) / np.sqrt(12) * 1.5
