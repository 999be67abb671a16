"""A model's tokens as the grammar engine wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from llguidance import LLTokenizer, TokenizerWrapper


class Spelling(Protocol):
    """What is asked of a tokeniser; `twinpath.text` has the real one."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def split_special(self, text: str) -> Sequence[Segment]: ...


class Segment(Protocol):
    """A stretch of text, or one control token."""

    @property
    def text(self) -> str: ...

    @property
    def token_id(self) -> int | None: ...


class Vocabulary:
    """Immutable once built; used by the engine's loop and by the thread that compiles."""

    def __init__(
        self, spelling: Spelling, size: int, end_ids: Sequence[int], encode: Callable[[str], list[int]] | None = None
    ) -> None:
        """`size`: rows of the model's output. Ids that the tokeniser does not know are never legal.

        `encode`: text as the model's own tokens, where nothing is put before it; None: longest match. Text that the
        grammar leaves no choice about is written in these tokens.
        """
        self.size = size
        self.end_ids = tuple(end_ids)
        self._spelling = spelling
        special = spelling.special_ids | set(end_ids)
        tokens = [_marked(spelling.token_bytes(i), i in special) for i in range(min(size, spelling.vocab_size))]
        self._special_firsts = {spelling.token_bytes(i).decode(errors="replace")[:1] for i in special} - {""}
        tokens += [b""] * (size - len(tokens))  # Rows without a token: never legal.
        #: Most brackets that one token opens, and so the most that it adds to the way to the end by them.
        self.most_openers = max(token.count(b"[") + token.count(b"{") for token in tokens)
        self._single = {token[0]: i for i, token in enumerate(tokens) if len(token) == 1}
        self._encode = encode or self._longest_match
        self._engine: LLTokenizer | None = None
        wrapper = TokenizerWrapper(_Tokens(tokens, sorted(special), self.end_ids[0], self._encode_forced))
        self._engine = LLTokenizer(wrapper, n_vocab=size, eos_token=list(self.end_ids))

    @property
    def engine(self) -> LLTokenizer:
        assert self._engine is not None
        return self._engine

    def split(self, text: str) -> Iterable[tuple[str, int | None]]:
        """`text` cut at the control tokens that it spells."""
        return [(segment.text, segment.token_id) for segment in self._spelling.split_special(text)]

    def token_bytes(self, token_id: int) -> bytes:
        """Control tokens as they are spelled, the end as nothing."""
        return b"" if token_id in self.end_ids else self._spelling.token_bytes(token_id)

    def tokenize(self, text: bytes) -> list[int]:
        """Few tokens for `text`, which may begin inside a character; control tokens where it spells some."""
        try:
            decoded = text.decode()
            # Cutting costs more than all the rest.
            parts = (
                self.split(decoded) if any(first in decoded for first in self._special_firsts) else [(decoded, None)]
            )
        except UnicodeDecodeError:
            return [self._single[byte] for byte in text if byte in self._single]
        ids: list[int] = []
        for part, token_id in parts:
            ids += self._longest_match(part) if token_id is None else [token_id]
        return ids

    def _longest_match(self, text: str) -> list[int]:
        return list(self.engine.greedy_tokenize(text))

    def _encode_forced(self, text: str | bytes) -> list[int]:
        # Asked once while the engine's own object is being built: the answer is not used.
        if self._engine is None:
            return []
        return self._encode(text if isinstance(text, str) else text.decode(errors="replace"))


class _Tokens:
    """What `TokenizerWrapper` reads."""

    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], special: list[int], end_id: int, encode: Callable[[str | bytes], list[int]]
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = end_id
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text)


def _marked(token: bytes, special: bool) -> bytes:
    """The engine tells a control token from text of the same spelling by its first byte."""
    return b"\xff" + token if special else token
