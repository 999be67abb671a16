"""Capacity planning: what a load would see on a machine, by running the real scheduler in simulated time.

Owns: reading traces into arrivals, the simulated engine and its clock, attainment per class, the comparison of
policies, plots. May import scheduler, kv, contracts, types, errors. Must not copy a decision of the scheduler, touch an
engine, a model or the network, or read the real clock.
"""

from twinpath.plan.arrivals import Arrival, SloClass, TraceSettings, Workload
from twinpath.plan.machine import MACHINES, Machine
from twinpath.plan.outcome import Report, report_of
from twinpath.plan.simulate import Options, Outcome, Simulation, simulate
from twinpath.plan.traces import load_workload

__all__ = [
    "MACHINES",
    "Arrival",
    "Machine",
    "Options",
    "Outcome",
    "Report",
    "Simulation",
    "SloClass",
    "TraceSettings",
    "Workload",
    "load_workload",
    "report_of",
    "simulate",
]
