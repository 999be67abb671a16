"""A tokeniser rebuilt from GGUF metadata: byte-level BPE ("gpt2") or SentencePiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, normalizers
from tokenizers.models import BPE

from twinpath.errors import ModelLoadError
from twinpath.model.gguf import GgufFile
from twinpath.model.tensors import quoted
from twinpath.text.pretokenizers import SPLITTERS
from twinpath.text.tokenizer import Tokenizer, TokenizerRules

#: `tokenizer.ggml.token_type` values. Source: llama.cpp `llama.h`, enum llama_token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_KEY = "tokenizer.ggml."
#: Begin or end a turn wherever they occur; some converters typed them as ordinary words. (`</s>` is not among them: it
#: is an HTML tag to Gemma.) Source: llama.cpp, `llama_vocab::impl::load`, the tokens it overrides to control.
TURN_SPELLINGS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|begin_of_text|>",
)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: list[str]
    ids: dict[str, int]
    types: NDArray[np.int64]

    def of_type(self, *types: int) -> list[str]:
        return list(compress(self.tokens, np.isin(self.types, types).tolist()))


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """Raises: ModelLoadError when the vocabulary is missing, inconsistent or of an unsupported kind."""
    vocabulary = _read_vocabulary(file)
    kind = file.text(_KEY + "model")
    if kind == "gpt2":
        backend, rules = _byte_level(file, vocabulary)
    elif kind == "llama":
        backend, rules = _sentencepiece(file, vocabulary)
    else:
        raise ModelLoadError(
            f"{file.path}: tokenizer model {quoted(str(kind))} is not supported, supported are gpt2, llama"
        )
    _add_tokens(backend, vocabulary.of_type(_USER_DEFINED), special=False)
    _add_tokens(backend, vocabulary.of_type(_CONTROL), special=True)
    return Tokenizer(backend, rules)


def token_id_of(file: GgufFile, name: str, num_tokens: int) -> int | None:
    """A token id named in the metadata (`bos`, `eos`, `eot`, ...), checked against the vocabulary."""
    token_id = file.integer(f"{_KEY}{name}_token_id")
    if token_id is not None and not 0 <= token_id < num_tokens:
        raise ModelLoadError(
            f"{file.path}: '{_KEY}{name}_token_id' is {token_id}, the vocabulary has {num_tokens} tokens"
        )
    return token_id


def _read_vocabulary(file: GgufFile) -> _Vocabulary:
    tokens = file.strings(_KEY + "tokens")
    if not tokens:
        raise ModelLoadError(f"{file.path}: metadata '{_KEY}tokens' is missing or empty")
    types = file.numbers(_KEY + "token_type")
    checked = np.full(len(tokens), _NORMAL) if types is None else types.astype(np.int64)
    if checked.size != len(tokens):
        raise ModelLoadError(f"{file.path}: '{_KEY}token_type' has {checked.size} items for {len(tokens)} tokens")
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    turns = [ids.get(spelling) for spelling in TURN_SPELLINGS]
    named = [token_id_of(file, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")]
    checked[[token_id for token_id in (*turns, *named) if token_id is not None]] = _CONTROL
    return _Vocabulary(tokens, ids, checked)


def _byte_level(file: GgufFile, vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, TokenizerRules]:
    name = file.text(_KEY + "pre") or "default"
    splitter = SPLITTERS.get(name)
    if splitter is None:
        raise ModelLoadError(
            f"{file.path}: pre-tokenizer {quoted(name)} is not supported, supported are {', '.join(SPLITTERS)}"
        )
    lines = file.strings(_KEY + "merges")
    if lines is None:
        raise ModelLoadError(f"{file.path}: metadata '{_KEY}merges' is missing")
    merges = [(left, right) for left, _, right in [line.partition(" ") for line in lines]]
    backend = tokenizers.Tokenizer(_bpe(file, vocabulary.ids, merges, ignore_merges=splitter.ignore_merges))
    backend.pre_tokenizer = splitter.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    normalizer = splitter.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    return backend, TokenizerRules("byte_level", _bos_id(file, vocabulary, splitter.adds_bos), len(vocabulary.tokens))


def _sentencepiece(file: GgufFile, vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, TokenizerRules]:
    stored = file.numbers(_KEY + "scores")
    with np.errstate(invalid="ignore"):
        scores = np.zeros(0) if stored is None else stored.astype(np.float64)
    if scores.size != len(vocabulary.tokens) or not np.all(np.isfinite(scores)):
        raise ModelLoadError(f"{file.path}: '{_KEY}scores' must have {len(vocabulary.tokens)} finite items")
    unknown = token_id_of(file, "unknown", len(vocabulary.tokens))
    merges = merges_from_scores(vocabulary.tokens, scores, vocabulary.types == _NORMAL)
    unknown_token = vocabulary.tokens[unknown] if unknown is not None else None
    model = _bpe(file, vocabulary.ids, merges, unk_token=unknown_token, fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    prefix = file.flag(_KEY + "add_space_prefix")
    prefix = True if prefix is None else prefix
    backend.normalizer = normalizers.Replace(" ", "▁")
    rules = TokenizerRules(
        "sentencepiece",
        _bos_id(file, vocabulary, default=True),
        len(vocabulary.tokens),
        dummy_prefix="every" if prefix else "none",
        strips_leading_space=prefix,
    )
    return backend, rules


def merges_from_scores(
    tokens: Sequence[str], scores: NDArray[np.float64], is_normal: NDArray[np.bool_]
) -> list[tuple[str, str]]:
    """BPE merges that do what SentencePiece does with scores: join the adjacent pair whose piece scores best.

    Each way to cut a piece into two pieces is a merge; merges are ranked by the score of what they make.
    """
    normal = is_normal.tolist()
    known = set(compress(tokens, normal))
    order = np.argsort(-scores, kind="stable").tolist()
    merges: list[tuple[str, str]] = []
    for token_id in order:
        if normal[token_id]:
            token = tokens[token_id]
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in known and right in known:
                    merges.append((left, right))
    return merges


def _bpe(file: GgufFile, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: object) -> BPE:
    try:
        return BPE(vocab=vocabulary, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{file.path}: the vocabulary and its merges do not fit: {error}") from None


def _bos_id(file: GgufFile, vocabulary: _Vocabulary, default: bool) -> int | None:
    wanted = file.flag(_KEY + "add_bos_token")
    bos = token_id_of(file, "bos", len(vocabulary.tokens))
    return bos if (default if wanted is None else wanted) else None


def _add_tokens(backend: tokenizers.Tokenizer, tokens: Iterable[str], *, special: bool) -> None:
    backend.add_tokens([tokenizers.AddedToken(t, special=special, normalized=False) for t in tokens if t])
