"""Rows whose next token must fit a grammar: their masks, what was sampled under them, why they cannot go on."""

from __future__ import annotations

import numpy as np

from twinpath.contracts import Constraint
from twinpath.scheduler.chunk import Row
from twinpath.scheduler.sequence import Sequence
from twinpath.types import EngineInfo, ErrorEvent, Int32s, TokenMasks

#: Tokens that are known before they are computed go in one row with the one that was sampled: a short one.
_MOST_FORCED = 7


class RowMaskSource:
    """Implements `types.MaskSource`: every constraint's mask, where its sequence stands."""

    def __init__(self, sequences: list[Sequence], words: Int32s) -> None:
        """Shapes: words int32 [len(sequences), ceil(vocab / 32)]."""
        self._sequences = sequences
        self._words = words

    def allows(self, index: int, token: int) -> bool:
        constraint, num_left = self._at(index)
        try:
            return constraint.allows(token, num_left)
        except Exception as error:
            return _give_up(constraint, error)

    def fill(self, index: int) -> None:
        constraint, num_left = self._at(index)
        try:
            constraint.fill(self._words[index], num_left)
        except Exception as error:  # This request fails, and no step waits for ever.
            self._words[index] = 0
            _give_up(constraint, error)

    def _at(self, index: int) -> tuple[Constraint, int]:
        sequence = self._sequences[index]
        assert sequence.constraint is not None
        return sequence.constraint, sequence.max_outputs - sequence.num_outputs


def masks_for(rows: list[Row], vocab_size: int) -> TokenMasks | None:
    """Room for the masks of the constrained rows that sample; not filled."""
    segments: list[int] = []
    for index, row in enumerate(rows):
        if row.sample and row.sequence.constraint is not None:
            segments.append(index)
    if not segments:
        return None
    words: Int32s = np.empty((len(segments), -(-vocab_size // 32)), np.int32)
    source = RowMaskSource([rows[segment].sequence for segment in segments], words)
    return TokenMasks(np.array(segments, np.int32), words, source=source)


def fill_masks(masks: TokenMasks) -> None:
    """All of them."""
    assert masks.source is not None
    for index in range(len(masks.segments)):
        masks.source.fill(index)
    masks.ready.set()


def _give_up(constraint: Constraint, error: Exception) -> bool:
    constraint.error = f"the grammar cannot be followed: {type(error).__name__}: {error}"
    return False


def counted(sequence: Sequence, new_tokens: list[int], info: EngineInfo) -> list[int] | None:
    """Show the grammar the token that was sampled; what it forces after that comes along. [] when it does not count
    since the answer ends before it; None when it does not count and the last known position runs again for another."""
    constraint = sequence.constraint
    if constraint is None or not new_tokens:
        return new_tokens
    (token,) = new_tokens
    num_left = sequence.max_outputs - sequence.num_outputs - 1
    if constraint.accept(token, num_left):
        # A device's decode step has single rows, and a token that was not sampled has no log-probability.
        if info.depth > 1 or sequence.sampling.logprobs is not None:
            return new_tokens
        forced = constraint.take_forced(min(_MOST_FORCED, num_left), num_left)
        sequence.needs_init |= bool(forced)
        return [token, *forced]
    if constraint.finished:
        return []
    sequence.step_back()
    return None


def refusal(sequence: Sequence, failure: str | None) -> ErrorEvent | None:
    """Why a request ends here, the engine's reason or its grammar's; None: it does not."""
    if sequence.constraint is not None and sequence.constraint.error is not None:
        return ErrorEvent(sequence.request_id, sequence.constraint.error, "grammar_error", 400)
    return None if failure is None else ErrorEvent(sequence.request_id, failure)
