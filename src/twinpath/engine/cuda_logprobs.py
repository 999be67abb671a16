"""Log-probabilities, computed on the host from logits that the card kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twinpath.engine.cuda_forward import Forward
from twinpath.engine.cuda_rows import Run
from twinpath.engine.step_output import StepOutput
from twinpath.errors import EngineError
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


def wants_prompt(run: Run) -> bool:
    """Whether rows of `run` have prompt log-probabilities to tell."""
    return run.bound.sampling.prompt_logprobs is not None and run.start + 1 < run.bound.num_prompt


def prompt_logprobs(runs: Sequence[Run], forward: Forward, residual: Tensor, output: StepOutput) -> None:
    """Entries for the rows whose next token is a prompt token, of runs that ask. Waits for the card."""
    for run in runs:
        num_top, bound = run.bound.sampling.prompt_logprobs, run.bound
        targets = bound.tokens[run.start + 1 : min(run.start + run.length + 1, bound.num_prompt)]
        if num_top is None or not targets:
            continue
        entries: list[TokenLogprob] = []
        size = min(_LOGIT_ROWS, len(forward.logits_buffer))
        try:
            for first in range(0, len(targets), size):
                block = targets[first : first + size]
                begin = run.row + first
                picked = torch.arange(begin, begin + len(block), dtype=torch.int32, device=residual.device)
                logits = forward.logits(picked, residual).cpu().numpy()
                entries += [token_logprob(row, token, num_top) for row, token in zip(logits, block, strict=True)]
        except EngineError as failure:
            output.failures[run.index] = bound.failure = str(failure)
            continue
        output.prompt_logprobs[run.index] = entries
