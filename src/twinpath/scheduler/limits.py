"""From the settings and an engine to the limits the scheduler works with."""

from __future__ import annotations

from typing import Literal

from twinpath.config import SchedulerConfig
from twinpath.scheduler.scheduler import SchedulerLimits
from twinpath.types import EngineInfo

#: Default tokens per step. CPU: small, so that a newcomer's first token and a cancellation wait little.
_DEFAULT_STEP_TOKENS = {"cpu": 256, "cuda": 8192}


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
        enable_prefix_caching=config.enable_prefix_caching,
    )
