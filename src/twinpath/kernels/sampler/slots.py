"""Puts a request's sampling settings into a slot's rows of the device tables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from twinpath.kernels.sampler.spec import SlotState, has_penalties
from twinpath.types import Int32s, SamplingParams


def fill_tables(state: SlotState, slot: int, params: SamplingParams, history: Int32s, num_prompt: int) -> None:
    """The tables of `slot` that its settings read: counts, bias and its ids, stop bits. Others keep what they held.

    `floats`, `ints` and `history` are not written: a caller has faster ways for those.
    """
    vocab_size = state.counts.shape[1]
    device = state.counts.device
    if has_penalties(params):
        valid = (history >= 0) & (history < vocab_size)
        counts = 2 * np.bincount(history[num_prompt:][valid[num_prompt:]], minlength=vocab_size).astype(np.int32)
        counts[history[:num_prompt][valid[:num_prompt]]] |= 1
        state.counts[slot].copy_(torch.from_numpy(counts))
    if params.logit_bias:
        pairs = [(token, bias) for token, bias in params.logit_bias.items() if 0 <= token < vocab_size]
        ids, values = [token for token, _ in pairs], [bias for _, bias in pairs]
        row = state.bias[slot].zero_()
        row[torch.tensor(ids, dtype=torch.int64, device=device)] = torch.tensor(
            values, dtype=torch.float64, device=device
        )
        state.biased[slot].copy_(_bits(ids, vocab_size))
    if params.stop_token_ids and params.min_tokens:
        state.stops[slot].copy_(_bits(params.stop_token_ids, vocab_size))


def _bits(ids: Iterable[int], vocab_size: int) -> Tensor:
    """int32 [W], the bits of `ids` set; ids outside the vocabulary have none."""
    words = np.zeros(-(-vocab_size // 32), np.uint32)
    for token in ids:
        if 0 <= token < vocab_size:
            words[token // 32] |= np.uint32(1 << token % 32)
    return torch.from_numpy(words.view(np.int32))
