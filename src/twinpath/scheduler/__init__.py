"""Which rows run in which step: continuous batching, prefix reuse, preemption, cancellation; and the loop that drives
an engine.

Owns every decision between a `Request` and a `StepPlan`, and between a `StepResult` and `Event`s. May import kv,
contracts, types; `loop` also ipc messages and config. Never imports torch or an engine, never reads a clock it was
not given.

A request goes `inbox` -> `loop` -> `grammars` -> `scheduler`, where `admission` gives it a lane and a promise, `queue`
and `roster` hold it in the order of a `policy`, and `memory` finds it pages (`residency`: what it holds). `rows` picks
each `step`, with lanes as `lanes` says (`cost`, `curve`, `shapes`: what steps take; `pacing`, `reserve`: what stays
free). What comes back is told by `answer`. Promises: `outlook` looks ahead by a `rollout` of `ghosts`, `forecast`
corrects it.
"""

from twinpath.scheduler.assembly import make_scheduler
from twinpath.scheduler.cost import Coefficients, CostModel, StepShape, shape_of
from twinpath.scheduler.grammars import ConstraintsOnDemand, NoConstraints
from twinpath.scheduler.heartbeat import HeartbeatThread
from twinpath.scheduler.lanes import LaneSettings
from twinpath.scheduler.limits import describe_lanes, first_cost_model, resolve_limits, resolve_step_tokens
from twinpath.scheduler.loop import EngineLoop
from twinpath.scheduler.memory import Memory, MemorySettings
from twinpath.scheduler.policy import POLICIES, Policy, make_policy
from twinpath.scheduler.scheduler import Scheduler, SchedulerLimits

__all__ = [
    "POLICIES",
    "Coefficients",
    "ConstraintsOnDemand",
    "CostModel",
    "EngineLoop",
    "HeartbeatThread",
    "LaneSettings",
    "Memory",
    "MemorySettings",
    "NoConstraints",
    "Policy",
    "Scheduler",
    "SchedulerLimits",
    "StepShape",
    "describe_lanes",
    "first_cost_model",
    "make_policy",
    "make_scheduler",
    "resolve_limits",
    "resolve_step_tokens",
    "shape_of",
]
