"""Rows whose next token must fit a grammar: their masks, what was sampled under them, why they cannot go on."""

from __future__ import annotations

import numpy as np

from twinpath.contracts import Constraint
from twinpath.scheduler.chunk import Row
from twinpath.scheduler.sequence import Sequence
from twinpath.types import ErrorEvent, Int32s, TokenMasks


def masks_for(rows: list[Row], vocab_size: int) -> TokenMasks | None:
    """Room for the masks of the constrained rows that sample; not filled."""
    segments = [index for index, row in enumerate(rows) if row.sample and row.sequence.constraint is not None]
    if not segments:
        return None
    words: Int32s = np.empty((len(segments), -(-vocab_size // 32)), np.int32)
    return TokenMasks(np.array(segments, np.int32), words)


def fill_masks(masks: TokenMasks, rows: list[Row]) -> None:
    """Every constraint's, where its sequence stands."""
    for segment, words in zip(masks.segments.tolist(), masks.words, strict=True):
        sequence = rows[segment].sequence
        assert sequence.constraint is not None
        _fill(sequence.constraint, words, sequence.max_outputs - sequence.num_outputs)
    masks.ready.set()


def _fill(constraint: Constraint, words: Int32s, num_left: int) -> None:
    try:
        constraint.fill(words, num_left)
    except Exception as error:  # This request fails, and no step waits for ever.
        words[:] = 0
        constraint.error = f"the grammar cannot be followed: {type(error).__name__}: {error}"


def counted(sequence: Sequence, new_tokens: list[int]) -> list[int] | None:
    """Show the grammar the token that was sampled. [] when it does not count since the answer ends before it; None
    when it does not count and the last known position runs again for another."""
    constraint = sequence.constraint
    if constraint is None or not new_tokens:
        return new_tokens
    (token,) = new_tokens
    if constraint.accept(token, sequence.max_outputs - sequence.num_outputs - 1):
        return new_tokens
    if constraint.finished:
        return []
    sequence.step_back()
    return None


def refusal(sequence: Sequence, failure: str | None) -> ErrorEvent | None:
    """Why a request ends here, the engine's reason or its grammar's; None: it does not."""
    if sequence.constraint is not None and sequence.constraint.error is not None:
        return ErrorEvent(sequence.request_id, sequence.constraint.error, "grammar_error", 400)
    return None if failure is None else ErrorEvent(sequence.request_id, failure)
