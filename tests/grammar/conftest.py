"""A vocabulary of bytes and common pieces, over the byte tokeniser: small, and like a real one in what matters."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from twinpath.grammar import GrammarCompiler, GrammarConstraint, Vocabulary
from twinpath.text.tokenizer import Segment
from twinpath.types import Grammar, Int32s, Request, SamplingParams

PIECES = (
    '"',
    '":',
    '",',
    '": ',
    '", "',
    '{"',
    '"}',
    "}}",
    "[[",
    "]]",
    "[]",
    "{}",
    "true",
    "null",
    "name",
    "age",
    " the",
    "ab",
    "10",
    "\n</",
)
END, CONTROL = 256, 257
CONTROL_TEXT = "<|call|>"


@dataclass(frozen=True)
class Pieces:
    """Ids: the bytes, an end, a control token, then `PIECES`; the last ids of the model's output have no meaning."""

    size: int = 300
    special_ids: frozenset[int] = frozenset({END, CONTROL})
    vocab_size: int = 258 + len(PIECES)
    spelled: dict[int, bytes] = field(
        default_factory=lambda: {
            **{byte: bytes([byte]) for byte in range(256)},
            END: b"<|end|>",
            CONTROL: CONTROL_TEXT.encode(),
            **{258 + index: piece.encode() for index, piece in enumerate(PIECES)},
        }
    )

    def token_bytes(self, token_id: int) -> bytes:
        return self.spelled.get(token_id, b"")

    def split_special(self, text: str) -> list[Segment]:
        parts: list[Segment] = []
        for index, part in enumerate(text.split(CONTROL_TEXT)):
            parts += [Segment(CONTROL_TEXT, CONTROL)] if index else []
            parts += [Segment(part)] if part else []
        return parts


@dataclass
class Answer:
    """What a model that draws evenly from the legal tokens says under a grammar."""

    tokens: list[int]
    text: str
    finished: bool
    closed_out: bool
    num_refused: int


class Sayer:
    """Runs grammars with the scheduler's rules, in the scheduler's order of calls."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.vocabulary = Vocabulary(self.pieces, self.pieces.size, [END])
        self.compiler = GrammarCompiler(self.vocabulary)

    def constraint(self, grammar: Grammar, *, min_tokens: int = 0) -> GrammarConstraint:
        outcome: list[object] = []
        sampling = SamplingParams(max_tokens=1, min_tokens=min_tokens)
        request = Request(request_id="r", prompt_ids=[1], sampling=sampling, grammar=grammar)
        self.compiler._thread.submit(lambda: None).result()
        self.compiler.prepare(request, outcome.append)
        self.compiler._thread.submit(lambda: None).result()
        (found,) = outcome
        assert isinstance(found, GrammarConstraint), found
        return found

    def legal(self, constraint: GrammarConstraint, num_left: int) -> list[int]:
        words: Int32s = np.empty(-(-self.pieces.size // 32), np.int32)
        constraint.fill(words, num_left)
        found: list[int] = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
        return found

    def say(self, grammar: Grammar, max_tokens: int, seed: int) -> Answer:
        return self.finish(self.constraint(grammar), max_tokens, random.Random(seed).choice)

    def finish(self, constraint: GrammarConstraint, max_tokens: int, choose: Callable[[list[int]], int]) -> Answer:
        tokens: list[int] = []
        num_refused = 0
        while len(tokens) < max_tokens and not constraint.finished:
            legal = self.legal(constraint, max_tokens - len(tokens))
            assert legal and constraint.error is None, constraint.error
            token = choose(legal)
            if not constraint.accept(token, max_tokens - len(tokens) - 1):
                num_refused += 1
                continue
            if token == END:
                break
            tokens.append(token)
        text = b"".join(map(self.pieces.token_bytes, tokens)).decode(errors="surrogateescape")
        return Answer(tokens, text, constraint.finished, constraint.closed_out, num_refused)


@pytest.fixture(scope="session")
def sayer() -> Sayer:
    return Sayer()
