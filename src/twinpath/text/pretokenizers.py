"""The word splitters of byte-level BPE vocabularies, by the name that GGUF metadata gives them (`tokenizer.ggml.pre`).

Expressions as in llama.cpp's `llama-vocab.cpp`, which took them from each model's tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_SMOLLM = (r"\p{N}", _GPT2)


@dataclass(frozen=True, slots=True)
class Splitter:
    """How one family cuts text into words before BPE."""

    #: Applied one after the other, each to the pieces of the one before.
    patterns: tuple[str, ...]
    #: A word that is in the vocabulary is taken whole, merges or not.
    ignore_merges: bool = False
    #: The family composes characters first.
    nfc: bool = False
    #: What `add_bos_token` is when the file does not say.
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_LLAMA3_SPLITTER = Splitter((_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_SPLITTER = Splitter((_QWEN2,), nfc=True)

SPLITTERS: Mapping[str, Splitter] = {
    "default": Splitter(_DEFAULT),
    "gpt-2": Splitter((_GPT2,)),
    "gpt2": Splitter((_GPT2,)),
    "smollm": Splitter(_SMOLLM),
    "llama3": _LLAMA3_SPLITTER,
    "llama-v3": _LLAMA3_SPLITTER,
    "llama-bpe": _LLAMA3_SPLITTER,
    "qwen2": _QWEN2_SPLITTER,
    "deepseek-r1-qwen": _QWEN2_SPLITTER,
    "tekken": Splitter((_TEKKEN,), ignore_merges=True),
}
