"""Which rows run in which step: continuous batching, prefix reuse, preemption, cancellation; and the loop that drives
an engine.

Owns every decision between a `Request` and a `StepPlan`, and between a `StepResult` and `Event`s. May import kv,
contracts, types; `loop` also ipc messages and config. Never imports torch or an engine, never reads a clock it was
not given.
"""

from twinpath.scheduler.heartbeat import HeartbeatThread
from twinpath.scheduler.limits import resolve_limits, resolve_step_tokens
from twinpath.scheduler.loop import EngineLoop
from twinpath.scheduler.scheduler import Scheduler, SchedulerLimits

__all__ = ["EngineLoop", "HeartbeatThread", "Scheduler", "SchedulerLimits", "resolve_limits", "resolve_step_tokens"]
