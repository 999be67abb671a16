"""Runs the sampler's kernels over rows of logits; allocates nothing, so it may be captured."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from twinpath.kernels.sampler import cut, kernel, scores
from twinpath.kernels.sampler.spec import BLOCK, NUM_BINS, SlotState, Workspace

_NUM_WARPS = 8


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
    """Sample rows [0, num_rows): tokens and codes go to `work`, tokens also to the slots' history and counts.

    Shapes: logits float32 [R, V], last axis contiguous; row_slots int32 [R], -1 for a row that is left out;
        row_positions int32 [R], the position of the drawn token; row_masks int32 [R], the row of `work.allowed` that
        masks this row, or -1. A slot appears at most once.
    greedy: promise that every row is greedy and asks for no log-probability: one launch instead of six.
    """
    vocab_size = logits.shape[1]
    blocks = triton.cdiv(vocab_size, BLOCK)
    grid = (num_rows, blocks)
    pdl = _has_dependent_launch(logits.device)
    options = {"num_warps": _NUM_WARPS, "enable_fp_fusion": False, **({"launch_pdl": True} if pdl else {})}
    sizes = {"NUM_BINS": NUM_BINS, "BLOCK": BLOCK, "PDL": pdl}
    kernel.adjust_kernel[grid](
        logits, logits.stride(0), row_slots, row_positions, row_masks, state.floats, state.ints,
        state.history, state.history.stride(0), state.counts, state.bias, state.stops, work.allowed,
        work.adjusted, work.bins, work.block_best, work.block_ids, work.rows, work.best, work.arrivals,
        work.tokens, work.codes, vocab_size, state.stops.shape[1], BLOCKS=blocks, **sizes, **options,
    )  # fmt: skip
    if greedy:
        return
    kernel.bin_kernel[grid](
        row_slots, state.floats, state.ints, work.adjusted, work.bins, work.rows, work.best, work.arrivals,
        vocab_size, **sizes, **options,
    )  # fmt: skip
    for _ in ("top_k", "top_p"):
        cut.cut_kernel[grid](
            row_slots, row_positions, state.floats, state.ints, state.history, state.history.stride(0), state.counts,
            work.adjusted, work.candidates, work.candidates.stride(0), work.bins, work.rows, work.best, work.arrivals,
            work.tokens, work.codes, vocab_size, **sizes, **options,
        )  # fmt: skip
    kernel.draw_kernel[grid](
        row_slots, row_positions, state.floats, state.ints, state.history, state.history.stride(0), state.counts,
        work.adjusted, work.block_sums, work.rows, work.best, work.arrivals, work.tokens, work.codes,
        vocab_size, BLOCK=BLOCK, BLOCKS=blocks, PDL=pdl, **options,
    )  # fmt: skip
    _score(logits, row_slots, work.tokens, state, work, num_rows=num_rows, num_top=-1)


def score_rows(
    logits: Tensor, row_slots: Tensor, tokens: Tensor, state: SlotState, work: Workspace, *, num_rows: int, num_top: int
) -> None:
    """Log-probabilities of `tokens` int32 [R] and of the `num_top` best ids of rows [0, num_rows), to `work.scores`.

    Shapes: logits float32 [R, V]; row_slots int32 [R], -1 for a row that is left out, else any slot. A row that holds
        NaN or +inf scores NaN; one that has nothing above -inf, infinity.
    """
    _score(logits, row_slots, tokens, state, work, num_rows=num_rows, num_top=num_top)


def _score(
    logits: Tensor, row_slots: Tensor, tokens: Tensor, state: SlotState, work: Workspace, *, num_rows: int, num_top: int
) -> None:
    vocab_size = logits.shape[1]
    blocks, pdl = triton.cdiv(vocab_size, BLOCK), _has_dependent_launch(logits.device)
    scores.score_kernel[(num_rows, blocks)](
        logits, logits.stride(0), row_slots, state.ints, tokens, work.codes,
        work.candidates, work.candidates.stride(0), work.block_best, work.block_sums, work.scores, work.arrivals,
        vocab_size, num_top, BLOCK=BLOCK, BLOCKS=blocks, PDL=pdl,
        num_warps=_NUM_WARPS, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip


@cache
def _has_dependent_launch(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
