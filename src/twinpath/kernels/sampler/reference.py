"""The sampler's plain twin: the same tables and results, through `twinpath.sampling`, one row after another."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from twinpath.errors import EngineError
from twinpath.kernels.sampler import spec
from twinpath.kernels.sampler.spec import FAILURES, SlotState, Workspace
from twinpath.sampling.reference import WEIGHT_BITS, sample, token_logprob
from twinpath.types import Float32s, Int32s, SamplingParams


def sample_rows(
    logits: Tensor,
    row_slots: Tensor,
    row_positions: Tensor,
    row_masks: Tensor,
    state: SlotState,
    work: Workspace,
    *,
    num_rows: int,
    greedy: bool = False,
) -> None:
    """As `launch.sample_rows`."""
    for row in range(num_rows):
        slot, position = int(row_slots[row]), int(row_positions[row])
        if slot < 0:
            continue
        try:
            mask = work.allowed[int(row_masks[row])].cpu().numpy() if int(row_masks[row]) >= 0 else None
            token, code = _sample_row(logits[row].cpu().numpy(), state, slot, position, mask), spec.OK
        except EngineError as error:
            token, code = 0, next(code for code, text in FAILURES.items() if text == str(error))
        work.tokens[row], work.codes[row] = token, code
        if code == spec.OK and (num_top := int(state.ints[slot, spec.NUM_TOP])) >= 0:
            work.scores[row] = _scores(logits[row], token, num_top)
        state.history[slot, position] = token
        if int(state.ints[slot, spec.FLAGS]) & spec.HAS_PENALTIES:
            state.counts[slot, token] += 2


def score_rows(
    logits: Tensor, row_slots: Tensor, tokens: Tensor, state: SlotState, work: Workspace, *, num_rows: int, num_top: int
) -> None:
    """As `launch.score_rows`."""
    for row in range(num_rows):
        if int(row_slots[row]) < 0:
            continue
        try:
            work.scores[row] = _scores(logits[row], int(tokens[row]), num_top)
        except EngineError as error:
            work.scores[row] = np.nan if str(error) == FAILURES[spec.NOT_FINITE] else np.inf


def _scores(logits: Tensor, token: int, num_top: int) -> Tensor:
    entry = token_logprob(logits.cpu().numpy(), token, num_top)
    row = torch.zeros(spec.NUM_SCORES, dtype=torch.float64)
    row[1 + spec.MAX_TOP :] = -1
    row[0] = entry.logprob
    for place, (other, logprob) in enumerate(entry.top):
        row[1 + place], row[1 + spec.MAX_TOP + place] = logprob, other
    return row


def _sample_row(logits: Float32s, state: SlotState, slot: int, position: int, mask: Int32s | None) -> int:
    flags, floats = int(state.ints[slot, spec.FLAGS]), state.floats[slot].tolist()
    history, num_prompt = _history(state, slot, flags)
    # The history here has another length, so what is left of min_tokens is counted from its prompt.
    min_tokens = int(state.ints[slot, spec.MIN_TOKENS]) + int(state.ints[slot, spec.NUM_PROMPT]) - num_prompt
    stops = _ids(state.stops[slot]) if flags & spec.HAS_STOPS else []
    bias = state.bias[slot]
    params = SamplingParams(
        max_tokens=1,
        min_tokens=min_tokens,
        temperature=0.0 if flags & spec.IS_GREEDY else 1.0 / floats[spec.INVERSE_TEMPERATURE],
        top_k=int(state.ints[slot, spec.TOP_K]),
        top_p=floats[spec.TOP_P],
        min_p=floats[spec.MIN_WEIGHT] / float(1 << WEIGHT_BITS),
        repetition_penalty=floats[spec.REPETITION],
        presence_penalty=floats[spec.PRESENCE],
        frequency_penalty=floats[spec.FREQUENCY],
        logit_bias={i: float(bias[i]) for i in bias.nonzero().flatten().tolist()} if flags & spec.HAS_BIAS else {},
        seed=int(state.ints[slot, spec.SEED]) & 0xFFFFFFFFFFFFFFFF,
        stop_token_ids=tuple(stops),
    )
    token, _ = sample(logits, params, history, num_prompt, position, mask)
    return token


def _history(state: SlotState, slot: int, flags: int) -> tuple[Int32s, int]:
    """A history with the counts of the slot's own: each prompt id once, then the output's."""
    if not flags & spec.HAS_PENALTIES:
        return np.zeros(0, np.int32), 0
    counts = state.counts[slot].cpu().numpy()
    prompt = np.flatnonzero(counts & 1)
    output = np.repeat(np.arange(len(counts)), counts >> 1)
    return np.concatenate([prompt, output]).astype(np.int32), len(prompt)


def _ids(words: Tensor) -> list[int]:
    """Positions of the bits that are set."""
    packed = words.cpu().numpy().view(np.uint8)
    return [int(i) for i in np.flatnonzero(np.unpackbits(packed, bitorder="little"))]
