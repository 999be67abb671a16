"""Text as text, control tokens as control tokens, bytes exactly."""

from __future__ import annotations

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from twinpath.text.byte_model import BEGIN_ID, CONTROL_TOKENS, END_ID, VOCAB_SIZE, byte_tokenizer
from twinpath.text.tokenizer import Segment, Tokenizer, TokenizerRules, byte_alphabet, well_formed

TOKENIZER = byte_tokenizer()
PIECES = st.sampled_from([*CONTROL_TOKENS, "<|", "|>", "<|en", "end", "d|>", "a", " ", "é", "<", "<|unknown|>"])
SPELLINGS = st.lists(PIECES, max_size=10).map("".join)


def test_byte_alphabet_is_gpt_2s() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert [alphabet[c] for c in "AĠĊÿ"] == [65, 32, 10, 255]


@given(text=st.one_of(SPELLINGS, st.text(max_size=30)))
def test_plain_text_never_becomes_a_control_token(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


@given(text=SPELLINGS)
def test_prompts_are_cut_at_control_tokens(text: str) -> None:
    segments = TOKENIZER.split_special(text)
    assert "".join(segment.text for segment in segments) == text
    for segment in segments:
        if segment.token_id is None:
            assert not any(token in segment.text for token in CONTROL_TOKENS)
        else:
            assert CONTROL_TOKENS[segment.token_id - 256] == segment.text
    assert TOKENIZER.decode(TOKENIZER.encode_prompt(text), skip_special=False) == text


def test_segments() -> None:
    assert TOKENIZER.split_special("a<|end|><|user|>b") == [
        Segment("a"),
        Segment("<|end|>", END_ID),
        Segment("<|user|>", 258),
        Segment("b"),
    ]
    assert TOKENIZER.split_special("") == []


def test_bytes_of_tokens() -> None:
    assert [TOKENIZER.token_bytes(i) for i in (0, 10, 255)] == [b"\0", b"\n", b"\xff"]
    assert TOKENIZER.token_bytes(END_ID) == b"<|end|>"
    assert [TOKENIZER.token_bytes(i) for i in (300, VOCAB_SIZE, 1 << 40, -1)] == [b""] * 4
    assert TOKENIZER.vocab_size == VOCAB_SIZE
    assert TOKENIZER.token_text(255) == "\ufffd"


def with_rules(rules: TokenizerRules, *, special_in_merges: bool = False) -> Tokenizer:
    """`a`, `b`, `ab` and a control token; its spelling may be what merges arrive at."""
    vocabulary = {"a": 0, "b": 1, "ab": 2, "<": 3, ">": 4, "<ab": 5, "<ab>": 6, "▁": 7}
    merges = [("a", "b")] + ([("<", "ab"), ("<ab", ">")] if special_in_merges else [])
    backend = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=merges))
    if rules.spelling == "byte_level":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<ab>"])
    return Tokenizer(backend, rules)


def test_merges_that_arrive_at_a_control_token_are_spelled_out() -> None:
    tokenizer = with_rules(TokenizerRules("byte_level"), special_in_merges=True)
    ids = tokenizer.encode("b<ab>a")
    assert 6 not in ids and tokenizer.decode(ids) == "b<ab>a"
    assert 6 in tokenizer.encode_prompt("b<ab>a")


def test_bos() -> None:
    tokenizer = with_rules(TokenizerRules("byte_level", bos_id=6))
    assert tokenizer.encode("ab") == [2]
    assert tokenizer.encode("ab", add_bos=True) == [6, 2]
    assert tokenizer.encode_prompt("ab") == [6, 2]
    assert tokenizer.encode_prompt("<ab>ab") == [6, 2]
    assert tokenizer.encode_prompt("") == [6]
    assert TOKENIZER.encode("ab", add_bos=True) == [97, 98]
    assert BEGIN_ID not in TOKENIZER.encode_prompt("ab")


def test_lone_surrogates_become_replacements() -> None:
    assert well_formed("a\ud83d") == "a\ufffd"
    assert well_formed("\ud83d\ude00") == "😀"
    assert TOKENIZER.decode(TOKENIZER.encode("\udfffb")) == "\ufffdb"
    assert TOKENIZER.split_special("\ud800") == [Segment("\ufffd")]


@given(text=st.text(max_size=20))
def test_text_that_utf_8_can_spell_is_left_alone(text: str) -> None:
    assert well_formed(text) == text


def test_text_that_cannot_be_spelled_is_unknown_even_if_that_is_a_control_token() -> None:
    backend = tokenizers.Tokenizer(BPE(vocab={"<unk>": 0, "a": 1}, merges=[], unk_token="<unk>"))
    backend.add_special_tokens(["<unk>"])
    assert Tokenizer(backend, TokenizerRules("sentencepiece")).encode("aé") == [1, 0]


def test_byte_tokens_of_sentencepiece() -> None:
    spellings = ["<0x0A>", "<0xfF>", "<0x4\x00>", "<0x1>", "▁a▁"]
    backend = tokenizers.Tokenizer(BPE(vocab={spelling: i for i, spelling in enumerate(spellings)}, merges=[]))
    tokenizer = Tokenizer(backend, TokenizerRules("sentencepiece"))
    assert [tokenizer.token_bytes(i) for i in range(5)] == [b"\n", b"\xff", b"<0x4\x00>", b"<0x1>", b" a "]
