"""Layout of the device sampler: what it knows of each slot, its workspace per row, and how settings become numbers.

Shape letters: S slots, R rows sampled at once, V vocabulary, W = ceil(V / 32) words of a bit mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinpath.errors import EngineError
from twinpath.sampling.reference import GREEDY_BELOW, WEIGHT_BITS
from twinpath.types import SamplingParams, TokenLogprob

#: Columns of `SlotState.floats` (float64).
INVERSE_TEMPERATURE, TOP_P, MIN_WEIGHT, REPETITION, FREQUENCY, PRESENCE = range(6)
NUM_FLOATS = 6
#: Columns of `SlotState.ints` (int64).
SEED, TOP_K, NUM_PROMPT, MIN_TOKENS, FLAGS, NUM_TOP = range(6)
NUM_INTS = 6
#: Bits of FLAGS: which tables a row reads.
HAS_PENALTIES, HAS_BIAS, HAS_STOPS, IS_GREEDY = 1, 2, 4, 8

#: Ids per program; what one program holds in registers.
BLOCK = 2048
#: Bins of the first cut: equal steps of log-probability from the best id to weight zero.
NUM_BINS = 8192
#: Candidates that are compared pairwise.
FEW = 256
#: Columns of `Workspace.rows` (int64).
NUM_ROW_INTS = 16
#: Most alternatives of one token.
MAX_TOP = 20
#: Columns of `Workspace.scores`: the token's log-probability; those of the best ids; these ids, -1 for none.
NUM_SCORES = 1 + 2 * MAX_TOP

#: `Workspace.codes`: why a row has no token. Texts as the plain sampler says them.
OK, NOT_FINITE, ALL_MASKED = range(3)
FAILURES = {
    NOT_FINITE: "the model produced non-finite logits",
    ALL_MASKED: "no token is left to sample: every logit is masked",
}


@dataclass(frozen=True, slots=True)
class SlotState:
    """What sampling needs of every slot.

    Shapes: floats float64 [S, NUM_FLOATS]; ints int64 [S, NUM_INTS]; history int32 [S, longest + 1]; counts int32
        [S, V] (bit 0: in the prompt; the rest: times in the output); bias float64 [S, V]; biased, the ids that have
        one, and stops int32 [S, W], bit i % 32 of word i // 32 for id i.
    """

    floats: Tensor
    ints: Tensor
    history: Tensor
    counts: Tensor
    bias: Tensor
    biased: Tensor
    stops: Tensor

    @classmethod
    def allocate(cls, num_slots: int, vocab_size: int, longest: int, device: torch.device) -> SlotState:
        words = -(-vocab_size // 32)
        return cls(
            floats=torch.zeros(num_slots, NUM_FLOATS, dtype=torch.float64, device=device),
            ints=torch.zeros(num_slots, NUM_INTS, dtype=torch.int64, device=device),
            history=torch.zeros(num_slots, longest + 1, dtype=torch.int32, device=device),
            counts=torch.zeros(num_slots, vocab_size, dtype=torch.int32, device=device),
            bias=torch.zeros(num_slots, vocab_size, dtype=torch.float64, device=device),
            biased=torch.zeros(num_slots, words, dtype=torch.int32, device=device),
            stops=torch.zeros(num_slots, words, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch and results of up to R rows.

    Shapes: adjusted float32 [R, V]; candidates int64 [R, V + FEW]; bins int64 [R, NUM_BINS]; block_best float32,
        block_ids int32, block_sums int64 [R, ceil(V / BLOCK)]; rows int64 [R, NUM_ROW_INTS]; best float32 [R];
        arrivals int32 [R]; results int32 [2, R], whose rows are tokens and codes; scores float64 [R, NUM_SCORES], of
        rows that ask for log-probabilities; allowed int32 [R, W].
    """

    adjusted: Tensor
    candidates: Tensor
    bins: Tensor
    block_best: Tensor
    block_ids: Tensor
    block_sums: Tensor
    rows: Tensor
    best: Tensor
    arrivals: Tensor
    results: Tensor
    scores: Tensor
    #: The masks that constrained rows of this step name; the caller fills it.
    allowed: Tensor

    @classmethod
    def allocate(cls, num_rows: int, vocab_size: int, device: torch.device) -> Workspace:
        blocks = -(-vocab_size // BLOCK)

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return cls(
            adjusted=zeros(num_rows, vocab_size, dtype=torch.float32),
            candidates=zeros(num_rows, vocab_size + FEW, dtype=torch.int64),
            bins=zeros(num_rows, NUM_BINS, dtype=torch.int64),
            block_best=zeros(num_rows, blocks, dtype=torch.float32),
            block_ids=zeros(num_rows, blocks, dtype=torch.int32),
            block_sums=zeros(num_rows, blocks, dtype=torch.int64),
            rows=zeros(num_rows, NUM_ROW_INTS, dtype=torch.int64),
            best=zeros(num_rows, dtype=torch.float32),
            arrivals=zeros(num_rows, dtype=torch.int32),
            results=zeros(2, num_rows, dtype=torch.int32),
            scores=zeros(num_rows, NUM_SCORES, dtype=torch.float64),
            allowed=zeros(num_rows, -(-vocab_size // 32), dtype=torch.int32),
        )

    @property
    def tokens(self) -> Tensor:
        return self.results[0]

    @property
    def codes(self) -> Tensor:
        return self.results[1]


def state_bytes(num_slots: int, num_rows: int, vocab_size: int, longest: int) -> int:
    """Bytes of `SlotState` and `Workspace` together, for the memory budget."""
    per_slot = 8 * (NUM_FLOATS + NUM_INTS) + 4 * (longest + 1) + 12 * vocab_size + vocab_size // 4 + 8
    per_row = 12 * vocab_size + vocab_size // 8 + 8 * NUM_BINS + 16 * (-(-vocab_size // BLOCK)) + 8 * NUM_ROW_INTS + 16
    per_row += 8 * NUM_SCORES
    return num_slots * per_slot + num_rows * per_row


def entry_of(scores: NDArray[np.float64], token: int, num_top: int) -> TokenLogprob:
    """One row of `Workspace.scores`, float64 [NUM_SCORES]; `num_top` <= MAX_TOP.

    Raises: EngineError for a row that could not be scored.
    """
    if np.isnan(scores[0]):
        raise EngineError(FAILURES[NOT_FINITE])
    if scores[0] == np.inf:
        raise EngineError(FAILURES[ALL_MASKED])
    values, ids = scores[1 : 1 + num_top].tolist(), scores[1 + MAX_TOP : 1 + MAX_TOP + num_top].tolist()
    top = tuple((int(other), value) for other, value in zip(ids, values, strict=True) if other >= 0)
    return TokenLogprob(token, float(scores[0]), top)


def settings(params: SamplingParams, num_prompt: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The slot's rows of `floats` and `ints`."""
    greedy = params.temperature < GREEDY_BELOW
    floats = np.zeros(NUM_FLOATS, np.float64)
    floats[INVERSE_TEMPERATURE] = 0.0 if greedy else 1.0 / params.temperature
    floats[TOP_P], floats[MIN_WEIGHT] = params.top_p, params.min_p * float(1 << WEIGHT_BITS)
    floats[REPETITION], floats[FREQUENCY] = params.repetition_penalty, params.frequency_penalty
    floats[PRESENCE] = params.presence_penalty
    ints = np.zeros(NUM_INTS, np.int64)
    ints[SEED] = np.uint64(params.seed & 0xFFFFFFFFFFFFFFFF).astype(np.int64)
    ints[TOP_K], ints[NUM_PROMPT], ints[MIN_TOKENS] = params.top_k, num_prompt, params.min_tokens
    ints[NUM_TOP] = -1 if params.logprobs is None else min(params.logprobs, MAX_TOP)
    ints[FLAGS] = (
        HAS_PENALTIES * has_penalties(params)
        + HAS_BIAS * bool(params.logit_bias)
        + HAS_STOPS * bool(params.stop_token_ids and params.min_tokens)
        + IS_GREEDY * greedy
    )
    return floats, ints


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
