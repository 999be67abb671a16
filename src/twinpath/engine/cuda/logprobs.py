"""Log-probabilities of prompts, and of rows that want more than the card ranks; see also the sampler's `scores`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twinpath.engine.cuda.forward import Forward
from twinpath.engine.cuda.ops import Operation
from twinpath.engine.cuda.rows import Run
from twinpath.engine.step_output import StepOutput
from twinpath.errors import EngineError
from twinpath.kernels.sampler.spec import MAX_TOP, SlotState, Workspace, entry_of
from twinpath.sampling.reference import token_logprob
from twinpath.types import TokenLogprob

#: Rows whose prompt log-probabilities are computed at once.
_LOGIT_ROWS = 64


class KeptLogits:
    """Raw logits of sampled rows whose log-probabilities were asked for, until their step's result is read."""

    def __init__(self, num_rings: int, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._kept = torch.zeros(num_rings, num_rows, vocab_size, dtype=torch.float32, device=device)

    def keep(self, ring: int, row: int, logits: Tensor) -> None:
        """Queue a copy of logits float32 [vocab]."""
        self._kept[ring, row].copy_(logits)

    def logprob(self, ring: int, row: int, token: int, num_top: int) -> TokenLogprob:
        return token_logprob(self._kept[ring, row].cpu().numpy(), token, num_top)


class PromptScorer:
    """Scores rows of a residual against tokens that are known. Waits for the card."""

    def __init__(self, forward: Forward, score_rows: Operation, state: SlotState, work: Workspace) -> None:
        self._forward, self._score_rows, self._state, self._work = forward, score_rows, state, work
        self.num_rows = min(_LOGIT_ROWS, len(forward.logits_buffer), len(work.scores))
        self._slots = torch.zeros(self.num_rows, dtype=torch.int32, device=work.scores.device)

    def warm_up(self, residual: Tensor) -> None:
        """Compile what `entries` launches."""
        self.entries(residual, 0, [0] * min(self.num_rows, len(residual)), 1)

    def entries(self, residual: Tensor, first: int, tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
        """Of rows from `first` on, as many as there are tokens (at most `num_rows`), `tokens` the ones that follow.

        Raises: EngineError when a row cannot be scored.
        """
        num, device = len(tokens), residual.device
        picked = torch.arange(first, first + num, dtype=torch.int32, device=device)
        logits = self._forward.logits(picked, residual)
        if num_top > MAX_TOP:
            rows = logits.cpu().numpy()
            return [token_logprob(row, token, num_top) for row, token in zip(rows, tokens, strict=True)]
        targets = torch.tensor(tokens, dtype=torch.int32, device=device)
        self._score_rows(logits, self._slots, targets, self._state, self._work, num_rows=num, num_top=num_top)
        scores = self._work.scores[:num].cpu().numpy()
        return [entry_of(row, token, num_top) for row, token in zip(scores, tokens, strict=True)]


def wants_prompt(run: Run) -> bool:
    """Whether rows of `run` have prompt log-probabilities to tell."""
    return run.bound.sampling.prompt_logprobs is not None and run.start + 1 < run.bound.num_prompt


def prompt_logprobs(runs: Sequence[Run], scorer: PromptScorer, residual: Tensor, output: StepOutput) -> None:
    """Entries for the rows whose next token is a prompt token, of runs that ask. Waits for the card."""
    for run in runs:
        num_top, bound = run.bound.sampling.prompt_logprobs, run.bound
        targets = bound.tokens[run.start + 1 : min(run.start + run.length + 1, bound.num_prompt)]
        if num_top is None or not targets:
            continue
        entries: list[TokenLogprob] = []
        try:
            for first in range(0, len(targets), scorer.num_rows):
                block = targets[first : first + scorer.num_rows]
                entries += scorer.entries(residual, run.row + first, block, num_top)
        except EngineError as failure:
            output.failures[run.index] = bound.failure = str(failure)
            continue
        output.prompt_logprobs[run.index] = entries
