"""Text encoded word by word has the ids of the text encoded as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from twinpath.text.tokenizer import Tokenizer, TokenizerRules, byte_alphabet
from twinpath.text.words import WordCache, goes_word_by_word

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Merges inside words, at their beginnings, and over what must stay apart.
MERGES = [
    ("a", "b"),
    ("Ġ", "a"),
    ("Ġa", "b"),
    ("ab", "a"),
    ("b", "Ġ"),
    ("a", "Ġ"),
    ("Ċ", "a"),
    (".", "Ġ"),
    ("Ġ", "Ġ"),
    ("1", "2"),
]


def backend(pre_tokenizer: pre_tokenizers.PreTokenizer | None = None) -> tokenizers.Tokenizer:
    spellings = [*byte_alphabet(), *("".join(pair) for pair in MERGES)]
    built = tokenizers.Tokenizer(BPE({spelling: i for i, spelling in enumerate(spellings)}, MERGES))
    built.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    return built


def llama_3() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


KINDS = {"gpt-2": backend(), "llama-3": backend(llama_3())}


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.text("ab .\n'1-\t_sB", max_size=30), max_size=6))
def test_ids_are_those_of_the_whole_text(kind: str, texts: list[str]) -> None:
    whole = KINDS[kind]
    assert goes_word_by_word(whole)
    asked: list[str] = []

    def encode_all(pieces: Sequence[str]) -> list[list[int]]:
        asked.extend(pieces)
        return [encoding.ids for encoding in whole.encode_batch(list(pieces), add_special_tokens=False)]

    words = WordCache(encode_all)
    words.fill(["ab", "aba", "-", "a b", ""])
    for text in [*texts, *texts]:  # Met, and met again.
        assert words.encode(text) == whole.encode(text, add_special_tokens=False).ids


def test_known_words_are_not_encoded_again() -> None:
    asked: list[str] = []

    def encode_all(pieces: Sequence[str]) -> list[list[int]]:
        asked.extend(pieces)
        return [[len(piece)] for piece in pieces]

    words = WordCache(encode_all)
    assert words.encode("say some words") == [3, 5, 6]
    assert words.encode("say words some\n") == [3, 12]
    assert asked == ["say", " some", " words", " words some\n"]


def test_tokenisers_that_join_words_or_change_text_are_left_alone() -> None:
    joined = backend()
    joined.add_tokens([AddedToken("a b", normalized=False)])
    lower = backend()
    lower.normalizer = normalizers.Lowercase()
    every_space = backend(pre_tokenizers.Split(Regex(r"\n"), behavior="isolated"))
    prefixed = backend(pre_tokenizers.ByteLevel(add_prefix_space=True))
    for kind in (joined, lower, every_space, prefixed):
        assert not goes_word_by_word(kind)


@given(text=st.text(max_size=40))
def test_a_tokeniser_uses_it_for_plain_text_only(text: str) -> None:
    tokenizer = Tokenizer(backend(), TokenizerRules("byte_level"))
    tokenizer.warm_up()
    assert tokenizer.decode(tokenizer.encode(text)) == text
