"""Encodes plain text word by word from memory: a word that was met before costs a look into a dict.

Byte-level vocabularies are trained on pieces that never cross from a printable character into a space and a letter, so
what lies between two such places is encoded alike wherever it stands. Whether a tokeniser keeps to that is asked of it.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import tokenizers

#: Text up to this length goes word by word: the interpreter is held meanwhile, about a millisecond.
MAX_CHARS = 64 * 1024
_MAX_WORDS = 200_000
_MAX_WORD_CHARS = 48
_LETTERS = frozenset(string.ascii_letters)

Encode = Callable[[Sequence[str]], list[list[int]]]


class WordCache:
    """Ids of ASCII text from the ids of its words; `encode_all` is asked for what was not met before.

    Several threads may use one: what they add is the same.
    """

    def __init__(self, encode_all: Encode) -> None:
        self._encode_all = encode_all
        #: Words behind a space, without it; and what texts and lines begin with.
        self._words: dict[str, list[int]] = {}
        self._beginnings: dict[str, list[int]] = {}

    def fill(self, words: Sequence[str]) -> None:
        """Learn words that will come; each begins with a letter and holds no space."""
        words = [word for word in words if _stands_alone(word)][:_MAX_WORDS]
        self._words.update(zip(words, self._encode_all([" " + word for word in words]), strict=True))
        self._beginnings.update(zip(words, self._encode_all(words), strict=True))

    def encode(self, text: str) -> list[int]:
        """Ids of ASCII text."""
        first, *rest = text.split(" ")
        found = list(map(self._words.get, rest))
        if None in found or not _ends_piece(first):
            return self._learn(first, rest)
        ids = self._begin(first)
        for known in found:
            ids += known  # type: ignore[arg-type]  # none is None
        return ids

    def _begin(self, first: str) -> list[int]:
        """Ids of what stands before the first space: a line's beginning is a piece as well."""
        head, line_break, tail = first.rpartition("\n")
        if not (head and head[-1] in _LETTERS and tail and tail[0] in _LETTERS):
            head, line_break, tail = "", "", first
        ids: list[int] = []
        for piece in (head + line_break, tail):
            if piece:
                known = self._beginnings.get(piece)
                if known is None:
                    known = self._encode_all([piece])[0]
                    _remember(self._beginnings, piece, known)
                ids += known
        return ids

    def _learn(self, first: str, rest: list[str]) -> list[int]:
        """The same with words that are new, and with stretches that can only be encoded together."""
        pieces, words = [first], [""]
        for word in rest:
            if _stands_alone(word) and _ends_piece(pieces[-1]):
                pieces.append(" " + word)
                words.append(word)
            else:
                pieces[-1] += " " + word
                words[-1] = ""
        ids: list[int] = []
        if pieces[0] == first and _ends_piece(first):
            ids += self._begin(first)
            del pieces[0], words[0]
        found = [self._words.get(word) for word in words]
        encoded = iter(self._encode_all([piece for piece, known in zip(pieces, found, strict=True) if known is None]))
        for word, known in zip(words, found, strict=True):
            if known is None:
                known = next(encoded)
                if word:
                    _remember(self._words, word, known)
            ids += known
        return ids


def _remember(known: dict[str, list[int]], text: str, ids: list[int]) -> None:
    if len(known) < _MAX_WORDS and len(text) <= _MAX_WORD_CHARS:
        known[text] = ids


def goes_word_by_word(backend: tokenizers.Tokenizer) -> bool:
    """Whether the tokeniser begins a new piece at every space before a letter that stands behind a printable
    character, changes no ASCII text first, and adds nothing to it."""
    added = backend.get_added_tokens_decoder().values()
    if backend.pre_tokenizer is None or any(_joins_words(token) for token in added if not token.special):
        return False
    printable = "".join(map(chr, range(33, 127)))
    text = " a".join(["", *printable, *(f"x{character}" for character in printable), ""]).strip() + "\nb"
    if backend.normalizer is not None and backend.normalizer.normalize_str(text) != text:
        return False
    if backend.pre_tokenizer.pre_tokenize_str("b") != [("b", (0, 1))]:
        return False
    begins = {begin for _, (begin, _) in backend.pre_tokenizer.pre_tokenize_str(text)}
    wanted = [at for at in range(1, len(text) - 1) if text[at] == " " and text[at + 1] in _LETTERS]
    return begins.issuperset([*wanted, len(text) - 2, len(text) - 1])


def _joins_words(token: tokenizers.AddedToken) -> bool:
    """Or lines."""
    pairs = zip(token.content, token.content[1:], strict=False)
    return token.lstrip or token.rstrip or any(first in " \n" and second in _LETTERS for first, second in pairs)


def _stands_alone(word: str) -> bool:
    """Behind a piece that ended: it begins one, and ends one."""
    return bool(word) and word[0] in _LETTERS and _ends_piece(word)


def _ends_piece(text: str) -> bool:
    return bool(text) and "!" <= text[-1] <= "~"
