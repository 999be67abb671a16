"""What a run amounts to: attainment, percentiles, starvation and goodput, per class and overall."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from twinpath.plan.arrivals import SloClass
from twinpath.plan.simulate import Outcome, Simulation


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Nearest-rank percentiles; requests that never got there count as infinite (null in JSON)."""

    p50: float
    p90: float
    p99: float
    max: float


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """One service class.

    attainment: share of all requests of the class that met both targets; failed and shed ones are misses.
    starvation_s: the longest that any of them waited for its first token.
    prediction_error: median of |predicted - actual| / actual of the time to first token; None without predictions.
    """

    name: str
    num_requests: int
    num_failed: int
    ttft_target_ms: float
    tpot_target_ms: float
    attainment: float
    ttft_attainment: float
    tpot_attainment: float
    ttft_ms: Spread
    tpot_ms: Spread
    starvation_s: float
    cached_share: float
    prediction_error: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `goodput_rps`: requests that met their targets per second, first arrival to last token."""

    workload: str
    machine: str
    policy: str
    num_requests: int
    span_s: float
    attainment: float
    goodput_rps: float
    output_tokens_per_s: float
    #: Share of the span in which the engine worked.
    busy: float
    num_steps: int
    num_preemptions: int
    classes: tuple[ClassReport, ...]
    notes: tuple[str, ...] = ()


def summarise_class(slo: SloClass, outcomes: Sequence[Outcome]) -> ClassReport:
    """`outcomes`: those of the class, at least one."""
    num = len(outcomes)
    served = [outcome for outcome in outcomes if not outcome.error]
    ttft = [outcome.ttft_ms for outcome in served]
    tpot = [outcome.tpot_ms for outcome in served]
    missing = [math.inf] * (num - len(served))
    errors = sorted(
        abs(outcome.predicted_ttft_ms - outcome.ttft_ms) / outcome.ttft_ms
        for outcome in served
        if not math.isnan(outcome.predicted_ttft_ms) and outcome.ttft_ms > 0
    )
    prompt_tokens = sum(outcome.arrival.num_prompt for outcome in served)
    return ClassReport(
        name=slo.name,
        num_requests=num,
        num_failed=len(missing),
        ttft_target_ms=slo.ttft_ms,
        tpot_target_ms=slo.tpot_ms,
        attainment=sum(outcome.met for outcome in outcomes) / num,
        ttft_attainment=sum(value <= slo.ttft_ms for value in ttft) / num,
        tpot_attainment=sum(value <= slo.tpot_ms for value in tpot) / num,
        ttft_ms=spread(ttft + missing),
        tpot_ms=spread(tpot + missing),
        starvation_s=max(ttft, default=0.0) / 1e3,
        cached_share=sum(outcome.cached_tokens for outcome in served) / max(prompt_tokens, 1),
        prediction_error=quantile(errors, 0.5) if errors else None,
    )


def report_of(simulation: Simulation) -> Report:
    """Of a simulation that ran."""
    outcomes, workload = simulation.outcomes, simulation.workload
    begin_s = min(outcome.arrived_s for outcome in outcomes)
    ends = [outcome.last_s for outcome in outcomes if not math.isnan(outcome.last_s)]
    span_s = max([*ends, begin_s]) - begin_s
    per_s = 1 / span_s if span_s else 0.0
    num_met = sum(outcome.met for outcome in outcomes)
    by_class = [[outcome for outcome in outcomes if outcome.arrival.slo is slo] for slo in workload.classes]
    return Report(
        workload=workload.name,
        machine=simulation.machine.name,
        policy=simulation.options.policy,
        num_requests=len(outcomes),
        span_s=span_s,
        attainment=num_met / len(outcomes),
        goodput_rps=num_met * per_s,
        output_tokens_per_s=sum(outcome.num_tokens for outcome in outcomes) * per_s,
        busy=simulation.engine.busy_s * per_s,
        num_steps=simulation.engine.num_steps,
        num_preemptions=simulation.scheduler.num_preemptions,
        classes=tuple(summarise_class(slo, own) for slo, own in zip(workload.classes, by_class, strict=True) if own),
        notes=workload.notes,
    )


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest value with at least a share `q` of the sample at or below it."""
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


def spread(values: list[float]) -> Spread:
    """Of a sample that is not empty."""
    ordered = sorted(values)
    return Spread(p50=quantile(ordered, 0.5), p90=quantile(ordered, 0.9), p99=quantile(ordered, 0.99), max=ordered[-1])
