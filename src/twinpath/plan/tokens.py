"""Prompts of simulated requests: blocks with ids instead of tokens, spelled out only while somebody looks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from twinpath.types import Int32s

#: Inclusive ranges of block ids, in order.
Blocks = tuple[tuple[int, int], ...]
#: Token ids from here on fill what no block covers: one id per request, so that nothing is shared by accident.
FILLER_BASE = 1 << 30


class TokenStream:
    """What a request says and hears: position p belongs to block p / block_tokens, and its token is that block's id.

    Equal leading blocks are equal leading tokens, which is all that a prefix cache sees of a prompt. `block_tokens` may
    be a fraction when a trace is scaled down.
    """

    __slots__ = ("_block_tokens", "_blocks", "filler", "num_covered")

    def __init__(self, blocks: Blocks, block_tokens: float, filler: int) -> None:
        self._blocks = blocks
        self._block_tokens = block_tokens
        #: The token of every position from `num_covered` on.
        self.filler = filler
        self.num_covered = math.ceil(num_blocks(blocks) * block_tokens)

    def tokens(self, begin: int, end: int) -> Int32s:
        """int32 [end - begin]."""
        covered_end = min(end, self.num_covered)
        if begin >= covered_end:
            return np.full(end - begin, self.filler, np.int32)
        span = self._block_tokens
        first, last = int(begin / span), int((covered_end - 1) / span)
        ids = self._ids(first, last + 1)
        tokens = np.full(end - begin, self.filler, np.int32)
        if len(ids) == 1:
            tokens[: covered_end - begin] = ids[0]
        else:
            index = (np.arange(begin, covered_end) / span).astype(np.int64) - first
            tokens[: covered_end - begin] = ids[index]
        return tokens

    def _ids(self, begin: int, end: int) -> Int32s:
        """Ids of blocks [begin, end), which exist."""
        parts = []
        for first, last in self._blocks:
            count = last - first + 1
            if begin < count:
                parts.append(np.arange(first + begin, first + min(end, count), dtype=np.int32))
            begin, end = max(begin - count, 0), end - count
            if end <= 0:
                break
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Prompt(Sequence[int]):
    """The first `num_tokens` of a stream as prompt ids: costs no memory per token until numpy asks for them."""

    __slots__ = ("_num_tokens", "_stream")

    def __init__(self, stream: TokenStream, num_tokens: int) -> None:
        self._stream = stream
        self._num_tokens = num_tokens

    def __len__(self) -> int:
        return self._num_tokens

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [int(token) for token in self._stream.tokens(0, self._num_tokens)[index]]
        position = range(self._num_tokens)[index]
        return int(self._stream.tokens(position, position + 1)[0])

    def __iter__(self) -> Iterator[int]:
        return iter(self._stream.tokens(0, self._num_tokens).tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        tokens = self._stream.tokens(0, self._num_tokens)
        return tokens if dtype is None else tokens.astype(dtype, copy=False)


def num_blocks(blocks: Blocks) -> int:
    return sum(last - first + 1 for first, last in blocks)


def num_shared_blocks(one: Blocks, other: Blocks) -> int:
    """Length of the longest common prefix."""
    shared = 0
    for (first, last), (other_first, other_last) in zip(one, other, strict=False):
        if first != other_first:
            return shared
        shared += min(last, other_last) - first + 1
        if last != other_last:
            return shared  # Ranges are maximal: what follows the shorter one is not what goes on in the longer.
    return shared


def to_ranges(ids: Sequence[int]) -> Blocks:
    """Runs of consecutive ids as inclusive ranges."""
    ranges: list[tuple[int, int]] = []
    for block in ids:
        if ranges and ranges[-1][1] + 1 == block:
            ranges[-1] = (ranges[-1][0], block)
        else:
            ranges.append((block, block))
    return tuple(ranges)
