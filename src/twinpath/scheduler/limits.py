"""From the settings and an engine to the limits the scheduler works with."""

from __future__ import annotations

from twinpath.config import SchedulerConfig
from twinpath.scheduler.scheduler import SchedulerLimits
from twinpath.types import EngineInfo

#: Default tokens per step. CPU: small, so that a newcomer's first token and a cancellation wait little.
_DEFAULT_STEP_TOKENS = {"cpu": 256, "cuda": 8192}


def resolve_limits(config: SchedulerConfig, info: EngineInfo) -> SchedulerLimits:
    """No value exceeds what the engine can do. Without chunked prefill a step may be as long as the engine allows."""
    num_tokens = config.max_num_batched_tokens or _DEFAULT_STEP_TOKENS[info.device]
    if not config.enable_chunked_prefill:
        num_tokens = info.max_step_tokens
    num_tokens = min(num_tokens, info.max_step_tokens)
    return SchedulerLimits(
        max_num_seqs=min(config.max_num_seqs, info.max_slots, num_tokens),
        max_num_batched_tokens=num_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
    )
