"""Tokenisers rebuilt from GGUF metadata: byte-level ones against llama.cpp's ids, the others against sentencepiece."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.gguf_bytes import ARRAY, Gguf, field_bytes, string_field, strings_field, u32_field
from twinpath.errors import ModelLoadError
from twinpath.model.gguf import GgufArray, GgufFile
from twinpath.text.gguf_tokenizer import tokenizer_from_gguf
from twinpath.text.tokenizer import Tokenizer

RIGHT = json.loads((Path(__file__).parents[1] / "fixtures" / "llama_cpp_ids.json").read_text())
KEY = "tokenizer.ggml."
FLOAT, INT, BOOL = 6, 5, 7


def raw_array(file: GgufFile, key: str) -> bytes:
    array = file.fields[KEY + key]
    assert isinstance(array, GgufArray)
    head = struct.pack("<IQ", array.type, array.num_items)
    return field_bytes(KEY + key, ARRAY, head + file.bytes[array.start : array.end].tobytes())


@pytest.fixture(scope="module")
def with_pre(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The default model's vocabulary under another pre-tokenizer name."""
    source = GgufFile(default_model_path)
    arrays = [raw_array(source, key) for key in ("tokens", "token_type", "merges")]

    def build(pre: str) -> Tokenizer:
        path = tmp_path_factory.mktemp("pre") / "model.gguf"
        path.write_bytes(Gguf([string_field(KEY + "model", "gpt2"), string_field(KEY + "pre", pre), *arrays]).build())
        return tokenizer_from_gguf(GgufFile(path))

    return build


@pytest.mark.model
@pytest.mark.parametrize("pre", RIGHT["plain"])
def test_ids_as_llama_cpp(with_pre: Any, pre: str) -> None:
    tokenizer = with_pre(pre)
    for text, ids in zip(RIGHT["texts"], RIGHT["plain"][pre], strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.model
def test_control_tokens_as_llama_cpp(default_model_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(GgufFile(default_model_path))
    for text, ids in zip(RIGHT["texts"], RIGHT["special"]["smollm"], strict=True):
        assert tokenizer.encode_prompt(text) == ids, text
        assert tokenizer.decode(ids, skip_special=False) == text


CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the dog sleeps",
    "she sells sea shells by the sea shore while there she thinks of the other shore",
    "naïve café déjà vu über straße 12 34 56 78 the end of the beginning",
] * 20


@pytest.fixture(scope="module", params=[True, False], ids=["dummy-prefix", "no-prefix"])
def pieces(request: pytest.FixtureRequest) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=1.0,
        add_dummy_prefix=request.param,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["\n\n", "[tool]"],
        control_symbols=["<turn>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def type_of(pieces: sentencepiece.SentencePieceProcessor, token_id: int) -> int:
    if pieces.IsUnknown(token_id):
        return 2
    if pieces.IsControl(token_id):
        return 3
    if pieces.IsByte(token_id):
        return 6
    return 4 if pieces.IdToPiece(token_id) in ("\n\n", "[tool]") else 1


@pytest.fixture(scope="module")
def rebuilt(pieces: sentencepiece.SentencePieceProcessor, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    ids = range(pieces.GetPieceSize())
    scores = struct.pack(f"<IQ{len(ids)}f", FLOAT, len(ids), *map(pieces.GetScore, ids))
    types = struct.pack(f"<IQ{len(ids)}i", INT, len(ids), *(type_of(pieces, i) for i in ids))
    prefix = pieces.EncodeAsPieces("the")[0].startswith("▁")
    path = tmp_path_factory.mktemp("spm") / "model.gguf"
    fields = [
        string_field(KEY + "model", "llama"),
        strings_field(KEY + "tokens", [pieces.IdToPiece(i) for i in ids]),
        field_bytes(KEY + "scores", ARRAY, scores),
        field_bytes(KEY + "token_type", ARRAY, types),
        field_bytes(KEY + "add_space_prefix", BOOL, bytes([prefix])),
        u32_field(KEY + "bos_token_id", pieces.bos_id()),
        u32_field(KEY + "eos_token_id", pieces.eos_id()),
        u32_field(KEY + "unknown_token_id", pieces.unk_id()),
    ]
    path.write_bytes(Gguf(fields).build())
    return tokenizer_from_gguf(GgufFile(path))


WORDS = st.sampled_from(
    ["the", "shore", " ", "  ", "\n", "\n\n", "[tool]", "é", "ß", "12", "世", "😀", "\t", "qz", "<turn>", "</s>"]
)


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.lists(WORDS, max_size=12).map("".join), st.text(max_size=30)))
def test_ids_as_sentencepiece(pieces: sentencepiece.SentencePieceProcessor, rebuilt: Tokenizer, text: str) -> None:
    assert rebuilt.encode(text) == pieces.EncodeAsIds(text)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40).filter(lambda text: "▁" not in text))
def test_text_survives(rebuilt: Tokenizer, text: str) -> None:
    assert rebuilt.decode(rebuilt.encode(text)) == text


def test_bos_is_added_once(rebuilt: Tokenizer, pieces: sentencepiece.SentencePieceProcessor) -> None:
    assert rebuilt.encode_prompt("the")[0] == pieces.bos_id()
    assert rebuilt.encode_prompt("<s>the").count(pieces.bos_id()) == 1
    assert pieces.bos_id() not in rebuilt.encode("<s>the")


def tiny(path: Path, fields: Sequence[bytes]) -> Tokenizer:
    path.write_bytes(Gguf(fields).build())
    return tokenizer_from_gguf(GgufFile(path))


TOKENS = strings_field(KEY + "tokens", ["a", "b", "ab", "<|im_end|>"])
GPT2 = string_field(KEY + "model", "gpt2")
MERGES = strings_field(KEY + "merges", ["a b"])


def test_turn_tokens_are_control_tokens_however_they_are_typed(tmp_path: Path) -> None:
    types = field_bytes(KEY + "token_type", ARRAY, struct.pack("<IQ4i", INT, 4, 1, 1, 1, 4))
    tokenizer = tiny(tmp_path / "m.gguf", [GPT2, TOKENS, MERGES, types])
    assert tokenizer.special_ids == {3}
    assert tokenizer.encode("ab<|im_end|>") == [2]
    assert tokenizer.encode_prompt("ab<|im_end|>") == [2, 3]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([GPT2], "'tokenizer.ggml.tokens' is missing or empty"),
        ([TOKENS], "tokenizer model 'None' is not supported"),
        ([TOKENS, string_field(KEY + "model", "bert")], "tokenizer model 'bert' is not supported"),
        ([TOKENS, GPT2], "'tokenizer.ggml.merges' is missing"),
        ([TOKENS, GPT2, MERGES, string_field(KEY + "pre", "klingon")], "pre-tokenizer 'klingon' is not supported"),
        ([TOKENS, GPT2, strings_field(KEY + "merges", ["x y"])], "the vocabulary and its merges do not fit"),
        (
            [TOKENS, GPT2, MERGES, field_bytes(KEY + "token_type", ARRAY, struct.pack("<IQi", 5, 1, 1))],
            "has 1 items for 4",
        ),
        ([TOKENS, GPT2, MERGES, u32_field(KEY + "eos_token_id", 4)], "eos_token_id' is 4, the vocabulary has 4 tokens"),
        ([TOKENS, string_field(KEY + "model", "llama")], "scores' must have 4 finite items"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, fields: list[bytes], says: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        tiny(tmp_path / "m.gguf", fields)
    assert says in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
