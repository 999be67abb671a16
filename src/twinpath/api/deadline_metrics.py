"""What `/metrics` shows of lanes, deadlines and the engine's lives, read from the latest heartbeat."""

from __future__ import annotations

from collections.abc import Callable

from twinpath.api.ports import Replica
from twinpath.config import SloConfig
from twinpath.ipc.messages import DeadlineGauges, LaneGauges
from twinpath.telemetry.metrics import ServerMetrics
from twinpath.telemetry.stalls import StallTracer


def watch_deadlines(metrics: ServerMetrics, replica: Replica, config: SloConfig) -> None:
    """Register them."""

    def by_lane(name: str, text: str, read: Callable[[LaneGauges], float]) -> None:
        def values() -> dict[str, float]:
            now = replica.gauges.deadlines
            return {"fast": read(now.fast), "flex": read(now.flex)}

        metrics.watch_by(name, text, "lane", values)

    metrics.slo.show_classes(slo.name for slo in config.classes)
    by_lane("twinpath:lane_requests_running", "Requests of a lane that run.", lambda lane: lane.running)
    by_lane("twinpath:lane_requests_waiting", "Requests of a lane in the queue.", lambda lane: lane.waiting)
    by_lane(
        "twinpath:wait_weibull_shape",
        "Shape of the Weibull distribution fitted to waits for the first row of prefill; 0: too few.",
        lambda lane: lane.wait_shape,
    )
    by_lane("twinpath:wait_weibull_scale_seconds", "Its scale.", lambda lane: lane.wait_scale_s)
    by_lane(
        "twinpath:expected_misses",
        "Of those waiting, how many will miss their target for the first token, by that distribution.",
        lambda lane: lane.expected_misses,
    )
    metrics.watch(
        "twinpath:decode_step_ms",
        "Predicted decode step of the streams that run.",
        lambda: _now(replica).decode_step_ms,
    )
    metrics.watch(
        "twinpath:itl_budget_ms",
        "Longest time between their tokens beside prefill.",
        lambda: _now(replica).itl_budget_ms,
    )
    metrics.watch_total(
        "twinpath:steps_measured", "Steps held against the cost model.", lambda: _now(replica).num_measured
    )
    metrics.watch_total(
        "twinpath:steps_off_prediction",
        "Those that took more than 2.5 times what it said, or less than the inverse.",
        lambda: _now(replica).num_outliers,
    )
    metrics.watch_total(
        "twinpath:requests_shed", "Requests refused because their target cannot be met.", lambda: _now(replica).num_shed
    )
    metrics.watch_total(
        "twinpath:engine_restarts",
        "Engines that were replaced because they died or hung.",
        lambda: replica.num_restarts,
    )


def watch_stalls(metrics: ServerMetrics, replica: Replica, tracer: StallTracer | None) -> None:
    """What held up the loops; zeros when nobody looks."""

    def counts() -> dict[str, float]:
        return {"http": tracer.num_stalls if tracer else 0, "engine": replica.gauges.stalls.num_stalls}

    def worst_s() -> dict[str, float]:
        return {"http": tracer.worst_s if tracer else 0.0, "engine": replica.gauges.stalls.worst_ms / 1e3}

    metrics.watch_by("twinpath:loop_stalls", "Times that a loop was held up (--trace-stalls-ms).", "loop", counts)
    metrics.watch_by("twinpath:loop_stall_worst_seconds", "The longest of them.", "loop", worst_s)


def _now(replica: Replica) -> DeadlineGauges:
    return replica.gauges.deadlines
