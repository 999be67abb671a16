"""From the settings and an engine to the limits the scheduler works with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from twinpath.config import SchedulerConfig
from twinpath.scheduler.cost import CPU_PRIOR, CUDA_PRIOR, CostModel, StepShape
from twinpath.scheduler.curve import H200_FEW_RATE, H200_MANY_RATE, H200_POINTS, CurvedCost
from twinpath.scheduler.lanes import LaneSettings
from twinpath.scheduler.memory import MemorySettings
from twinpath.scheduler.scheduler import SchedulerLimits
from twinpath.types import EngineInfo

#: Default tokens per step. CPU: small, so that a newcomer's first token and a cancellation wait little.
_DEFAULT_STEP_TOKENS = {"cpu": 256, "cuda": 8192}
#: Uncached tokens of half a second or more of prefill.
_DEFAULT_FLEX_THRESHOLD = {"cpu": 512, "cuda": 2048}
#: Longest step while no stream waits for a token. Two are under way, and an arrival waits for both.
_IDLE_STEP_MS = {"cpu": 50.0, "cuda": 3.0}
#: Prefill that a GPU runs as one captured step.
_FAST_STEP_MS = {"cpu": 0.0, "cuda": 20.0}


def resolve_step_tokens(config: SchedulerConfig, device: Literal["cpu", "cuda"], window_tokens: int) -> int:
    """Tokens of one step. Without chunked prefill: the longest prompt. Never less than one decode row per sequence."""
    num_tokens = config.max_num_batched_tokens or _DEFAULT_STEP_TOKENS[device]
    if not config.enable_chunked_prefill:
        num_tokens = max(num_tokens, window_tokens)
    return max(num_tokens, config.max_num_seqs)


def resolve_limits(config: SchedulerConfig, info: EngineInfo) -> SchedulerLimits:
    """No value exceeds what the engine can do."""
    num_tokens = min(resolve_step_tokens(config, info.device, info.max_model_len), info.max_step_tokens)
    return SchedulerLimits(
        max_num_seqs=min(config.max_num_seqs, info.max_slots, num_tokens),
        max_num_batched_tokens=num_tokens,
        memory=MemorySettings(
            config.enable_prefix_caching, config.enable_session_kv, config.session_ttl_s, config.max_pinned_share
        ),
        lanes=resolve_lanes(config, info) if config.lanes == "on" and config.enable_chunked_prefill else None,
        shed=config.admission == "shed",
    )


def resolve_lanes(config: SchedulerConfig, info: EngineInfo) -> LaneSettings:
    """What the lanes promise on this device."""
    threshold = config.flex_threshold
    return LaneSettings(
        flex_threshold_tokens=_DEFAULT_FLEX_THRESHOLD[info.device] if threshold is None else threshold,
        itl_budget=config.itl_budget,
        itl_budget_ms=config.itl_budget_ms,
        idle_step_ms=_IDLE_STEP_MS[info.device],
        fast_step_ms=_FAST_STEP_MS[info.device],
    )


def first_cost_model(info: EngineInfo) -> CostModel:
    """What is assumed of a device before it is measured."""
    if info.device == "cpu":
        return CostModel(CPU_PRIOR)
    points = _at_sizes(H200_POINTS, info.step_sizes) if info.step_sizes else H200_POINTS
    return CurvedCost(CUDA_PRIOR, points, H200_FEW_RATE, H200_MANY_RATE, info.chunk_grain)


def _at_sizes(points: Sequence[tuple[int, float]], sizes: Sequence[int]) -> list[tuple[int, float]]:
    """The same curve, up to the largest of `sizes` at these, with the given points beyond."""
    rows, times = [row for row, _ in points], [ms for _, ms in points]
    own = [(size, float(np.interp(size, rows, times))) for size in sizes]
    return own + [(row, ms) for row, ms in points if row > max(sizes)]


def describe_lanes(limits: SchedulerLimits, cost: CostModel) -> str:
    """One line for the start table."""
    if limits.lanes is None:
        return "off"
    decode_ms = cost.predict(StepShape(1, 1, num_sampled=1))
    num_rows = limits.max_num_batched_tokens
    rate = num_rows / cost.predict(StepShape(num_prefill=num_rows, prefill_context=num_rows * num_rows // 2)) * 1e3
    return f"on: decode step {decode_ms:.1f} ms, prefill {rate:,.0f} tokens/s"
