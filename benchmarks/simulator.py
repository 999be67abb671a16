"""Whether repeats change nothing, and how fast a simulation is: `python -m benchmarks.simulator TRACE --out FILE`.

equal: the same requests with every step planned, and with the horizon of repeats; no request may differ in anything.
speed: processor time of one simulation with repeats, a million requests by default.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import result_document
from twinpath.plan import MACHINES, Options, Outcome, Simulation, TraceSettings, load_workload
from twinpath.scheduler import LaneSettings

PIECES = ("equal", "speed")


def simulate(args: argparse.Namespace, num_requests: int, *, step_by_step: bool) -> tuple[Simulation, float]:
    """A run, and its processor time in seconds without reading the trace."""
    machine = MACHINES[args.machine]
    settings = TraceSettings(num_requests=num_requests, load=args.load, window_tokens=machine.info.max_model_len)
    workload = load_workload(args.trace, settings, machine.classes)
    lanes = LaneSettings() if args.lanes else None
    options = Options(args.policy, lanes, args.noise, seed=0, step_by_step=step_by_step)
    simulation = Simulation(workload, machine, options)
    gc.collect()
    gc.freeze()  # A million arrivals need not be looked through, as in a server, whose engine loop is frozen too.
    begin_s = time.process_time()
    simulation.run()
    return simulation, time.process_time() - begin_s


def equal(args: argparse.Namespace) -> dict[str, Any]:
    runs = [simulate(args, args.equal_requests, step_by_step=step_by_step) for step_by_step in (True, False)]
    (single, single_s), (repeated, repeated_s) = runs
    pairs = zip(single.outcomes, repeated.outcomes, strict=True)  # In order of arrival.
    return {
        "num_requests": len(single.outcomes),
        "num_steps": [single.engine.num_steps, repeated.engine.num_steps],
        "num_different": sum(told(one) != told(other) for one, other in pairs),
        "cpu_s": [single_s, repeated_s],
    }


def told(outcome: Outcome) -> str:
    """All that a request got. As text: NaN is itself, and floats are equal to the bit."""
    return repr([getattr(outcome, field.name) for field in fields(outcome) if field.name != "arrival"])


def speed(args: argparse.Namespace) -> dict[str, Any]:
    simulation, cpu_s = simulate(args, args.requests, step_by_step=False)
    return {
        "num_requests": args.requests,
        "num_steps": simulation.engine.num_steps,
        "simulated_hours": simulation.clock.now_s / 3600,
        "cpu_s": cpu_s,
        "ms_per_request": cpu_s * 1e3 / args.requests,
        "minutes_per_million": cpu_s / args.requests * 1e6 / 60,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.simulator", description=__doc__)
    parser.add_argument("trace", help="a trace file, or: mix, bursts")
    parser.add_argument("--piece", choices=PIECES, action="append")
    parser.add_argument("--machine", choices=list(MACHINES), default="h200-8b")
    parser.add_argument("--policy", default="twinpath")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--no-lanes", dest="lanes", action="store_false")
    parser.add_argument("--equal-requests", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {name: {"equal": equal, "speed": speed}[name](args) for name in args.piece or PIECES}
    rows: list[Row] = [["simulation", ""]]
    rows += [[f"{name}: {key}", str(value)] for name, one in found.items() for key, value in one.items()]
    print(render(rows))
    if args.out:
        settings = {"trace": Path(args.trace).stem, "machine": args.machine, "policy": args.policy, "load": args.load}
        settings |= {"noise": args.noise, "lanes": args.lanes}
        document = {"settings": settings, **found}
        args.out.write_bytes(result_document("simulator", sys.orig_argv, {"twinpath": __version__}, document))


if __name__ == "__main__":
    main()
