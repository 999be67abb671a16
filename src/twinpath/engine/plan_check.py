"""Is a step plan well formed? Every engine asks before it queues one: a scheduler bug is an error, not wrong KV."""

from __future__ import annotations

from operator import add

import numpy as np

from twinpath.types import EngineInfo, StepPlan, TokenMasks


def check_plan(plan: StepPlan, info: EngineInfo) -> None:
    """Shapes, ranges and limits of `plan` against `info`.

    Token ids and page ids are not looked at: those belong to one request and fail only its segment.

    Raises:
        ValueError: naming the field, its value and the limit.
    """
    # Lists, not arrays: this runs before every token, and numpy's call overhead would dominate it.
    slots, starts, lengths = plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist()
    num_segments = len(slots)
    for name in ("starts", "lengths", "sample", "block_tables"):
        if len(getattr(plan, name)) != num_segments:
            raise ValueError(f"plan.{name} has {len(getattr(plan, name))} entries for {num_segments} slots")
    if num_segments == 0:
        raise ValueError("plan has no segments")
    num_rows = sum(lengths)
    if min(lengths) < 1 or len(plan.tokens) != num_rows:
        raise ValueError(f"plan.tokens has {len(plan.tokens)} entries, plan.lengths ask for {lengths}")
    if num_rows > info.max_step_tokens:
        raise ValueError(f"plan carries {num_rows} tokens, the engine takes {info.max_step_tokens}")
    if len(set(slots)) != num_segments or min(slots) < 0 or max(slots) >= info.max_slots:
        raise ValueError(f"plan.slots must be distinct and below {info.max_slots}: {slots}")
    if min(starts) < 0:
        raise ValueError(f"plan starts before position 0: {starts}")
    end = max(map(add, starts, lengths))
    if end > info.max_model_len:
        raise ValueError(f"plan reaches position {end}, the model length is {info.max_model_len}")
    if plan.block_tables.size and (page := int(plan.block_tables.max())) >= info.num_pages:
        raise ValueError(f"plan names page {page} of {info.num_pages}")
    _check_layers(plan, num_rows, info)
    _check_budget(plan, info)
    if plan.masks is not None:
        _check_masks(plan.masks, num_segments, info)


def _check_layers(plan: StepPlan, num_rows: int, info: EngineInfo) -> None:
    if not 0 <= plan.layer_begin < plan.layer_end <= info.num_layers:
        raise ValueError(f"layers [{plan.layer_begin}, {plan.layer_end}) of a model with {info.num_layers}")
    whole = plan.layer_begin == 0 and plan.layer_end == info.num_layers
    if plan.residual is None:
        if not whole:
            raise ValueError(f"layers [{plan.layer_begin}, {plan.layer_end}) need a residual buffer")
    elif plan.residual.shape != (num_rows, info.hidden_size) or plan.residual.dtype != np.float32:
        got, wanted = f"{plan.residual.shape} {plan.residual.dtype}", f"({num_rows}, {info.hidden_size}) float32"
        raise ValueError(f"residual is {got}, not {wanted}")


def _check_budget(plan: StepPlan, info: EngineInfo) -> None:
    if plan.budget_ms is not None and (
        plan.residual is None or (plan.layer_begin, plan.layer_end) != (0, info.num_layers)
    ):
        raise ValueError("a plan with a budget runs all layers and names a residual")
    if plan.resume and plan.budget_ms is None:
        raise ValueError("a plan that goes on has a budget")


def _check_masks(masks: TokenMasks, num_segments: int, info: EngineInfo) -> None:
    segments = masks.segments.tolist()
    if segments != sorted(set(segments)) or (segments and not 0 <= segments[0] <= segments[-1] < num_segments):
        raise ValueError(f"plan.masks is for segments {segments} of {num_segments}")
    shape = (len(segments), -(-info.vocab_size // 32))
    if masks.words.shape != shape or masks.words.dtype != np.int32:
        raise ValueError(f"plan.masks.words is {masks.words.shape} {masks.words.dtype}, not {shape} int32")
