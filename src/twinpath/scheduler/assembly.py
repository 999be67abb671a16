"""A scheduler from settings and the engine it plans for."""

from __future__ import annotations

from twinpath.config import SchedulerConfig
from twinpath.contracts import Clock
from twinpath.scheduler.limits import first_cost_model, resolve_limits
from twinpath.scheduler.policy import make_policy
from twinpath.scheduler.scheduler import Scheduler
from twinpath.types import EngineInfo


def make_scheduler(config: SchedulerConfig, info: EngineInfo, clock: Clock) -> Scheduler:
    """With the cost model of before any measurement."""
    policy = make_policy(config.policy, relegate=config.admission != "observe")
    return Scheduler(info, resolve_limits(config, info), policy, clock=clock, cost=first_cost_model(info))
