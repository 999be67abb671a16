"""`twinpath plan`: what a load would see, printed and drawn."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from twinpath.errors import UserError
from twinpath.plan import MACHINES, Machine, Options, Outcome, Report, Simulation, SloClass, TraceSettings
from twinpath.plan.arrivals import build_workload
from twinpath.plan.comparison import compare
from twinpath.plan.outcome import report_of
from twinpath.plan.plot import bar, curves_svg
from twinpath.plan.traces import read_trace
from twinpath.scheduler import POLICIES, LaneSettings
from twinpath.scheduler.cost import CostModel


@dataclass(frozen=True, slots=True)
class SimulateArguments:
    """The flags of `twinpath plan simulate`."""

    trace: str
    policies: tuple[str, ...]
    machine: str
    cost: Path | None
    slo: tuple[str, ...]
    num_requests: int
    load: float
    token_scale: float
    num_seeds: int
    noise: float
    lanes: bool
    plot: Path | None


def run_simulate(arguments: SimulateArguments, as_json: bool) -> int:
    """Simulate every policy on every seed, and print. Raises: UserError."""
    if unknown := [name for name in arguments.policies if name not in POLICIES]:
        raise UserError(f"--policy: {unknown[0]} is none of {', '.join(POLICIES)}")
    machine = choose_machine(arguments.machine, arguments.cost)
    classes = tuple(map(parse_class, arguments.slo)) or machine.classes
    runs: dict[str, list[list[Outcome]]] = {policy: [] for policy in dict.fromkeys(arguments.policies)}
    reports: list[tuple[int, Report]] = []
    for seed in range(arguments.num_seeds):
        settings = TraceSettings(
            seed=seed,
            num_requests=arguments.num_requests,
            load=arguments.load,
            token_scale=arguments.token_scale,
            window_tokens=machine.info.max_model_len,
        )
        workload = build_workload(read_trace(arguments.trace, settings), settings, classes)
        for policy, outcomes in runs.items():
            lanes = LaneSettings() if arguments.lanes else None
            simulation = Simulation(workload, machine, Options(policy, lanes, arguments.noise, seed))
            outcomes.append(simulation.run())
            reports.append((seed, report_of(simulation)))
    baseline = next(iter(runs))
    differences = compare(runs, baseline) if len(runs) > 1 else []
    if as_json:
        rows = [{"seed": seed, **to_plain(report)} for seed, report in reports]
        print(json.dumps({"runs": rows, "differences": [to_plain(item) for item in differences]}, indent=2))
    else:
        # A pipe has no width that a table could be cut to.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
        for note in reports[0][1].notes:
            console.print(f"note: {note}")
        console.print(table_of(reports))
        for item in differences:
            console.print(
                f"{item.policy} - {item.baseline}: {item.mean:+.1%} attained [{item.low:+.1%}, {item.high:+.1%}], "
                f"{item.verdict}"
            )
    if arguments.plot is not None:
        write_plot(arguments, runs, classes)
    return 0


def choose_machine(name: str, cost: Path | None) -> Machine:
    """Raises: UserError on an unknown machine or a cost file that is none."""
    if name not in MACHINES:
        raise UserError(f"--machine: {name} is none of {', '.join(MACHINES)}")
    machine = MACHINES[name]
    if cost is None:
        return machine
    try:
        return machine.with_cost(CostModel.from_dict(json.loads(cost.read_bytes())).coefficients)
    except OSError as error:
        raise UserError(f"--cost: cannot read {cost}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        names = ", ".join(asdict(machine.cost))
        raise UserError(f"--cost: {cost} must hold a JSON object of milliseconds with {names}") from None


def parse_class(text: str) -> SloClass:
    """NAME:TTFT_MS:TPOT_MS[:MAX_NEW_TOKENS]; the more tokens, the lower the static priority. Raises: UserError."""
    name, *numbers = text.split(":")
    try:
        ttft_ms, tpot_ms, *rest = [float(number) for number in numbers]
        most = int(rest[0]) if rest else 1 << 62
    except (ValueError, OverflowError):
        raise UserError(f"--slo: {text!r} is not NAME:TTFT_MS:TPOT_MS[:MAX_NEW_TOKENS]") from None
    if not name or len(rest) > 1 or not min(ttft_ms, tpot_ms, most) > 0:
        raise UserError(f"--slo: {text!r} needs a name and numbers above zero")
    return SloClass(name, ttft_ms, tpot_ms, most, priority=min(most, 1 << 30))


def table_of(reports: list[tuple[int, Report]]) -> Table:
    """One row per seed, policy and class."""
    names = ("seed", "policy", "class", "requests", "attained", "", "TTFT p50", "p99", "TPOT p50", "p99", "oldest wait")
    table = Table(*names, box=None, padding=(0, 1))
    for seed, report in reports:
        for part in report.classes:
            table.add_row(
                str(seed),
                report.policy,
                part.name,
                str(part.num_requests),
                f"{part.attainment:.1%}",
                bar(part.attainment, 20),
                *map(milliseconds, (part.ttft_ms.p50, part.ttft_ms.p99, part.tpot_ms.p50, part.tpot_ms.p99)),
                f"{part.starvation_s:.1f} s",
            )
        table.add_row(
            str(seed),
            report.policy,
            "all",
            str(report.num_requests),
            f"{report.attainment:.1%}",
            bar(report.attainment, 20),
            f"{report.goodput_rps:.2f} good/s, {report.busy:.0%} busy",
        )
    return table


def write_plot(
    arguments: SimulateArguments, runs: dict[str, list[list[Outcome]]], classes: tuple[SloClass, ...]
) -> None:
    """Raises: UserError when the file cannot be written."""
    samples: dict[str, list[float]] = {}
    targets: dict[str, float] = {}
    for policy, seeds in runs.items():
        for slo in classes:
            name = f"{policy} {slo.name}"
            values = [o.ttft_ms for outcomes in seeds for o in outcomes if o.arrival.slo is slo]
            if values:
                samples[name], targets[name] = [math.inf if math.isnan(v) else v for v in values], slo.ttft_ms
    assert arguments.plot is not None
    svg = curves_svg(f"Time to first token: {arguments.trace} x {arguments.load:g}", samples, targets)
    try:
        arguments.plot.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--plot: cannot write {arguments.plot}: {error.strerror}") from None


def milliseconds(value: float) -> str:
    return "never" if value == math.inf else f"{value:,.1f} ms" if value < 1000 else f"{value / 1e3:,.2f} s"


def to_plain(value: object) -> dict[str, object]:
    """What JSON can say of a struct: infinite becomes null."""
    import msgspec

    plain: dict[str, object] = json.loads(msgspec.json.encode(value))
    return plain
