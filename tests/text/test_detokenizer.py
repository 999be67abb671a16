"""Deltas never show half a character, and joined they are the whole."""

from __future__ import annotations

import codecs
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinpath.text.byte_model import byte_tokenizer
from twinpath.text.detokenizer import Detokenizer

FAMILY = "👨‍👩‍👧‍👦"
TOKENIZER = byte_tokenizer()


def deltas(chunks: list[bytes]) -> list[str]:
    """One token per chunk."""
    detokenizer = Detokenizer(chunks.__getitem__)
    return [*(detokenizer.push([index]) for index in range(len(chunks))), detokenizer.finish()]


def test_an_emoji_in_two_halves() -> None:
    data = "😀".encode()
    assert deltas([data[:2], data[2:]]) == ["", "😀", ""]


def test_a_chinese_character_in_one_and_two_bytes() -> None:
    data = "你".encode()
    assert deltas([b"a" + data[:1], data[1:] + b"b"]) == ["a", "你b", ""]


def test_a_family_of_four_over_six_tokens() -> None:
    data = FAMILY.encode()
    chunks = [data[i : i + 5] for i in range(0, len(data), 5)]
    assert "".join(deltas(chunks)) == FAMILY
    assert not any("\ufffd" in delta for delta in deltas(chunks))


def test_no_chunk_waits_longer_than_its_character() -> None:
    """Every code point comes with the byte that completes it."""
    detokenizer = TOKENIZER.detokenizer()
    text = "aé你😀" + FAMILY
    for character in text:
        *first, last = character.encode()
        assert [detokenizer.push([byte]) for byte in first] == [""] * len(first)
        assert detokenizer.push([last]) == character


def test_an_incomplete_character_at_the_end_is_dropped() -> None:
    data = "ok 😀".encode()
    assert deltas([data[:-1]]) == ["ok ", ""]
    assert TOKENIZER.decode(list(data[:-1])) == "ok "


def test_bytes_that_can_be_no_character_become_replacements() -> None:
    assert "".join(deltas([b"a\xff", b"b", b"\xe4\xbd", b"c"])) == "a\ufffdb\ufffdc"


def test_spaces_and_newlines_survive() -> None:
    text = " answer:\n    if x:\n\n\tpass\r\n  "
    assert "".join(deltas([bytes([byte]) for byte in text.encode()])) == text


@pytest.mark.parametrize(
    ("continuation", "expected"), [(False, ["", " leading", " x"]), (True, [" ", " leading", " x"])]
)
def test_sentencepiece_dummy_prefix(continuation: bool, expected: list[str]) -> None:
    """`▁`, `▁leading`, `▁x`: an answer loses the one space that encoding would have added, a continuation does not."""
    tokens = [b" ", b" leading", b" x"]
    detokenizer = Detokenizer(tokens.__getitem__, strip_leading_space=not continuation)
    assert [detokenizer.push([index]) for index in range(3)] == expected


def test_control_tokens_are_left_out_unless_asked_for() -> None:
    ids = [257, *b"hi", 256, 300, 511]
    assert TOKENIZER.decode(ids) == "hi"
    assert TOKENIZER.decode(ids, skip_special=False) == "<|begin|>hi<|end|>"


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60)))
def test_chunking_changes_nothing(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    chunks = [data[a:b] for a, b in pairwise(edges)]
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    assert "".join(deltas(chunks)) == whole == TOKENIZER.decode(list(data))


@given(text=st.text(max_size=40))
def test_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(list(text.encode())) == text
