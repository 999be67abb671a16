"""What the engine's heartbeat says of lanes and deadlines. Read from the heartbeat's thread: sums and single values."""

from __future__ import annotations

from twinpath.ipc.messages import DeadlineGauges, LaneGauges, MemoryGauges
from twinpath.scheduler.memory import Memory
from twinpath.scheduler.scheduler import Scheduler
from twinpath.scheduler.sequence import Lane
from twinpath.scheduler.shapes import streams_of

#: New waits that make a fit stale; one costs about a millisecond.
_REFIT_AFTER = 16


def deadline_gauges(scheduler: Scheduler) -> DeadlineGauges:
    planner, running = scheduler.planner, list(scheduler.roster.running)
    streams = streams_of([sequence for sequence in running if sequence.started])
    alone_ms = planner.alone_ms(streams.shape) if planner is not None and streams else 0.0
    return DeadlineGauges(
        fast=_lane(scheduler, Lane.FAST, sum(sequence.lane is Lane.FAST for sequence in running)),
        flex=_lane(scheduler, Lane.FLEX, sum(sequence.lane is Lane.FLEX for sequence in running)),
        decode_step_ms=alone_ms,
        itl_budget_ms=planner.budget_ms(streams, alone_ms) if planner is not None and streams else 0.0,
        num_outliers=scheduler.cost.num_outliers,
        num_measured=scheduler.cost.num_observed,
        num_shed=scheduler.admission.num_shed if scheduler.admission is not None else 0,
    )


def memory_gauges(memory: Memory) -> MemoryGauges:
    counts, slabs = memory.pool.counts(), memory.slabs
    return MemoryGauges(
        pinned=counts.pinned,
        running=counts.running,
        session=counts.session,
        prefix=counts.prefix,
        free=counts.free,
        num_sessions=len(memory.sessions),
        num_sessions_expired=memory.sessions.num_expired,
        num_templates=len(memory.templates),
        num_fast_preemptions=memory.num_fast_preemptions,
        slabs_fast=slabs.held(Lane.FAST),
        slabs_flex=slabs.held(Lane.FLEX),
        num_slab_moves=slabs.num_moves,
    )


def _lane(scheduler: Scheduler, lane: Lane, num_running: int) -> LaneGauges:
    queue, now_s = scheduler.roster.waiting[lane], scheduler.roster.now_s
    waiting = queue.snapshot()
    ages_s = [max(now_s - sequence.arrival_s, 0.0) for sequence in waiting if sequence.waited_s is None]
    if queue.waits.num_new >= _REFIT_AFTER:
        queue.waits.fit(ages_s)
    fitted = queue.waits.fitted
    if fitted is None:
        return LaneGauges(num_running, len(waiting))
    misses = sum(
        fitted.miss_probability(now_s - sequence.arrival_s, (sequence.ttft_target_ms - sequence.prefill_ms) / 1e3)
        for sequence in waiting
        if sequence.ttft_target_ms is not None
    )
    return LaneGauges(num_running, len(waiting), fitted.shape, fitted.scale_s, misses)
