"""Queue policies on the same arrivals, in simulation: `python -m benchmarks.policies TRACE ... --out FILE`.

For every trace the load is searched at which EDF, over all seeds, lets 70-90 % of the requests meet their targets; then
every policy runs on the same seeds at that load. Differences to EDF are paired by request, with bootstrap intervals
over seeds and blocks of arrivals. See docs/simulator.md for what the numbers mean.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from twinpath.plan import MACHINES, Options, Outcome, Simulation, SloClass, TraceSettings, load_workload, report_of
from twinpath.plan.comparison import compare, find_load
from twinpath.plan.outcome import Report
from twinpath.scheduler import POLICIES, LaneSettings

BASELINE = "edf"
#: Seven of ten requests are awaited by somebody, three are background work with ten times the patience: policies that
#: see deadlines can tell them apart, also within a lane.
CLASSES = (
    SloClass("short", 300, 25, max_new_tokens=2048, share=0.7),
    SloClass("short-background", 3000, 50, max_new_tokens=2048, priority=2, share=0.3),
    SloClass("long", 15_000, 50, priority=1, share=0.7),
    SloClass("long-background", 60_000, 100, priority=3, share=0.3),
)


def run_one(source: str, policy: str, seed: int, load: float, arguments: argparse.Namespace) -> Simulation:
    machine = MACHINES[arguments.machine]
    settings = TraceSettings(
        seed=seed,
        num_requests=arguments.requests,
        load=load,
        token_scale=arguments.token_scale,
        window_tokens=machine.info.max_model_len,
    )
    scale = arguments.target_scale
    classes = [replace(slo, ttft_ms=slo.ttft_ms * scale, tpot_ms=slo.tpot_ms * scale) for slo in CLASSES]
    workload = load_workload(source, settings, classes)
    lanes = LaneSettings() if arguments.lanes else None
    simulation = Simulation(workload, machine, Options(policy, lanes, arguments.noise, seed))
    simulation.run()
    return simulation


def run_trace(source: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All policies and seeds of one trace at the load that EDF just manages."""

    def attained_by_edf(load: float) -> float:
        reports = [report_of(run_one(source, BASELINE, seed, load, arguments)) for seed in range(arguments.seeds)]
        return sum(report.attainment for report in reports) / len(reports)

    if arguments.load is None:
        load, reached = find_load(attained_by_edf, start=arguments.start_load)
    else:
        load, reached = arguments.load, attained_by_edf(arguments.load)
    print(f"\n{Path(source).stem}: load {load:g}, EDF attains {reached:.1%}", flush=True)
    runs: dict[str, list[list[Outcome]]] = {policy: [] for policy in POLICIES}
    reports: dict[str, list[Report]] = {policy: [] for policy in POLICIES}
    for seed in range(arguments.seeds):
        for policy in POLICIES:
            simulation = run_one(source, policy, seed, load, arguments)
            runs[policy].append(simulation.outcomes)
            reports[policy].append(report_of(simulation))
    differences = {"all": compare(runs, BASELINE)}
    for slo in CLASSES:
        differences[slo.name] = compare(runs, BASELINE, slo.name)
    print_table(reports, differences)
    return {
        "trace": Path(source).stem,
        "load": load,
        "notes": reports[BASELINE][0].notes,
        "reports": {policy: [msgspec.to_builtins(report) for report in own] for policy, own in reports.items()},
        "differences": msgspec.to_builtins(differences),
    }


def print_table(reports: dict[str, list[Report]], differences: dict[str, Any]) -> None:
    """Means over seeds; the oldest wait is the worst of all seeds."""
    names = [part.name for part in next(iter(reports.values()))[0].classes]
    columns = [f"{name} | TTFT p99 | oldest wait" for name in names]
    print(f"| policy | attained | {' | '.join(columns)} | minus EDF [95 %] |\n|{'---|' * (3 + 3 * len(names))}")
    against = {item.policy: item for item in differences["all"]}
    for policy, own in reports.items():
        cells = [policy, f"{sum(report.attainment for report in own) / len(own):.1%}"]
        for name in names:
            parts = [part for report in own for part in report.classes if part.name == name]
            cells.append(f"{sum(part.attainment for part in parts) / len(parts):.1%}")
            cells.append(f"{sum(part.ttft_ms.p99 for part in parts) / len(parts) / 1e3:.2f} s")
            cells.append(f"{max(part.starvation_s for part in parts):.1f} s")
        item = against.get(policy)
        cells.append(f"{item.mean:+.1%} [{item.low:+.1%}, {item.high:+.1%}] {item.verdict}" if item else "")
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", help="trace files, or: mix, bursts")
    parser.add_argument("--machine", choices=list(MACHINES), default="h200-8b")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--token-scale", type=float, default=1.0)
    parser.add_argument("--start-load", type=float, default=1.0, help="where the search begins")
    parser.add_argument("--load", type=float, help="this one, without a search")
    parser.add_argument(
        "--target-scale",
        type=float,
        default=1.0,
        help="multiplies all targets: a closed loop slows its own clients, so that load alone does not overload it",
    )
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--no-lanes", dest="lanes", action="store_false")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    begin = time.process_time()
    results = [run_trace(source, arguments) for source in arguments.traces]
    machine = MACHINES[arguments.machine]
    document = {
        "simulated": True,
        "machine": machine.name,
        "cost_ms": asdict(machine.cost),
        "classes": [asdict(slo) for slo in CLASSES],
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("out", "traces")},
        "cpu_s": time.process_time() - begin,
        "results": results,
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
