"""Log-probabilities in the two shapes OpenAI gave them. Every number is finite, so the JSON is strict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from twinpath.api.ports import Tokenizer
from twinpath.api.responses import ChatLogprob, LegacyLogprobsBody, TopLogprob
from twinpath.types import TokenLogprob

#: Stands for "never": OpenAI's own floor.
FLOOR = -9999.0


def finite(logprob: float) -> float:
    """-inf and NaN cannot be written in JSON."""
    return max(logprob, FLOOR) if math.isfinite(logprob) else FLOOR


def token_text(raw: bytes) -> str:
    """A token's bytes as text; part of a character shows as OpenAI's escape, so distinct tokens keep distinct names."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _is_part_of_character(raw: bytes) -> bool:
    return token_text(raw).startswith("bytes:") and not raw.startswith(b"bytes:")


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob], num_top: int) -> list[ChatLogprob]:
    """`choices[].logprobs.content`: one entry per output token, the end token included: as many as usage says."""
    entries = []
    for item in logprobs:
        raw = tokenizer.token_bytes(item.token_id)
        top = [_top(tokenizer, token_id, logprob) for token_id, logprob in item.top[:num_top]]
        entries.append(
            ChatLogprob(token=token_text(raw), logprob=finite(item.logprob), bytes=list(raw), top_logprobs=top)
        )
    return entries


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    raw = tokenizer.token_bytes(token_id)
    return TopLogprob(token=token_text(raw), logprob=finite(logprob), bytes=list(raw))


class LegacyLogprobs:
    """`choices[].logprobs` of /v1/completions, piece by piece; `text_offset` counts characters from the start."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def block(self, logprobs: Sequence[TokenLogprob], *, first_token_id: int | None = None) -> LegacyLogprobsBody:
        """Arrays for some tokens. `first_token_id`: an echoed prompt's first token, which has no probability."""
        block = LegacyLogprobsBody(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        if first_token_id is not None:
            self._add(block, first_token_id, None, None)
        for item in logprobs:
            top: dict[str, float] = {}
            for token_id, logprob in item.top[: self._num_top]:
                top.setdefault(token_text(self._tokenizer.token_bytes(token_id)), finite(logprob))
            self._add(block, item.token_id, finite(item.logprob), top)
        return block

    def _add(
        self, block: LegacyLogprobsBody, token_id: int, logprob: float | None, top: dict[str, float] | None
    ) -> None:
        raw = self._tokenizer.token_bytes(token_id)
        block.tokens.append(token_text(raw))
        block.token_logprobs.append(logprob)
        block.top_logprobs.append(top)
        block.text_offset.append(self._offset)
        # Control tokens are not part of the text; a character counts at its first byte.
        if _is_part_of_character(raw) or self._tokenizer.decode([token_id]):
            self._offset += sum(1 for byte in raw if byte & 0xC0 != 0x80)
