"""A damaged GGUF file on its whole way: spec, weights, tokeniser, template. One clear error, or all of it works."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.gguf_bytes import ARRAY, Gguf, Tensor, field_bytes, string_field, strings_field, u32_field
from twinpath.errors import InvalidRequest, ModelLoadError
from twinpath.model.files import ModelFiles
from twinpath.model.weights import load_weights, read_spec
from twinpath.text import load_text

TEMPLATE = b"{% for m in messages %}{{ m.content }}{% endfor %}"
TOKENS = ["<unk>", "<s>", "</s>", "<|im_end|>", "a", "b", "ab", "Ġ", "▁", "<0x41>", *(f"t{n}" for n in range(22))]
MATRICES = {
    "token_embd": (32, len(TOKENS)),
    "blk.0.attn_q": (32, 32),
    "blk.0.attn_k": (32, 16),
    "blk.0.attn_v": (32, 16),
    "blk.0.attn_output": (32, 32),
    "blk.0.ffn_gate": (32, 32),
    "blk.0.ffn_up": (32, 32),
    "blk.0.ffn_down": (32, 32),
    "output_norm": (32,),
    "blk.0.attn_norm": (32,),
    "blk.0.ffn_norm": (32,),
}


def numbers(key: str, kind: int, code: str, values: Sequence[float]) -> bytes:
    return field_bytes(key, ARRAY, struct.pack(f"<IQ{len(values)}{code}", kind, len(values), *values))


def whole_model(tokenizer: str) -> bytes:
    key = "tokenizer.ggml."
    fields = [
        string_field("general.architecture", "llama"),
        u32_field("llama.block_count", 1),
        u32_field("llama.embedding_length", 32),
        u32_field("llama.feed_forward_length", 32),
        u32_field("llama.attention.head_count", 2),
        u32_field("llama.attention.head_count_kv", 1),
        u32_field("llama.context_length", 64),
        field_bytes("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        string_field(key + "model", tokenizer),
        string_field(key + "pre", "llama-bpe"),
        strings_field(key + "tokens", TOKENS),
        numbers(key + "token_type", 5, "i", [2, 3, 3, 3, 1, 1, 1, 1, 1, 6] + [1] * 22),
        u32_field(key + "bos_token_id", 1),
        u32_field(key + "eos_token_id", 2),
        u32_field(key + "unknown_token_id", 0),
        string_field("tokenizer.chat_template", TEMPLATE.decode()),
    ]
    if tokenizer == "gpt2":
        fields.append(strings_field(key + "merges", ["a b"]))
    else:
        fields.append(numbers(key + "scores", 6, "f", [-float(n) for n in range(len(TOKENS))]))
    tensors = [Tensor(f"{name}.weight", dims, 0, bytes(4 * int(np.prod(dims)))) for name, dims in MATRICES.items()]
    return Gguf(fields, tensors).build()


WHOLE = {tokenizer: whole_model(tokenizer) for tokenizer in ("gpt2", "llama")}
META_BYTES = min(content.index(b"blk.0.ffn_norm.weight") for content in WHOLE.values())


def template_field(content: bytes) -> bytes:
    """The chat template's whole metadata field: with its key damaged, the file has no template either."""
    end = content.index(TEMPLATE) + len(TEMPLATE)
    return content[content.index(b"tokenizer.chat_template") - 8 : end]


def load_and_use(path: Path) -> None:
    files = ModelFiles(path, "gguf")
    weights = load_weights(files, read_spec(files))
    assert all(weights[name].data.size for name in weights)
    text = load_text(files)
    text.tokenizer.decode(text.encode_chat([{"role": "user", "content": "ab<|im_end|> é\0"}]))
    text.tokenizer.decode(range(-1, 40))


@pytest.mark.parametrize("tokenizer", WHOLE)
def test_undamaged(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "m.gguf").write_bytes(WHOLE[tokenizer])
    load_and_use(tmp_path / "m.gguf")


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    tokenizer=st.sampled_from(sorted(WHOLE)),
    edits=st.lists(st.tuples(st.integers(0, META_BYTES), st.binary(min_size=1, max_size=4)), min_size=1, max_size=3),
)
def test_random_damage(tmp_path: Path, tokenizer: str, edits: list[tuple[int, bytes]]) -> None:
    content = bytearray(WHOLE[tokenizer])
    for position, patch in edits:
        content[position : position + len(patch)] = patch
    (tmp_path / "m.gguf").write_bytes(content)
    try:
        load_and_use(tmp_path / "m.gguf")
    except ModelLoadError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
    except InvalidRequest:
        assert template_field(WHOLE[tokenizer]) not in content
