"""Load generation and reports: speaks HTTP to any OpenAI-compatible server and knows nothing of ours but `types` and
`errors`.

Owns the load client, arrival patterns, request records, statistics with their sample sizes, and the machine's
description.
Must not import any other room: what it measures it measures from outside.
"""

from twinpath.bench.arrivals import poisson_arrivals, run_closed, run_open
from twinpath.bench.client import LoadClient
from twinpath.bench.host import CpuMeter, describe_machine, process_tree, pss_mb
from twinpath.bench.records import RequestRecord
from twinpath.bench.report import Summary, result_document, summarize
from twinpath.bench.statistics import Distribution, PairedRatio, describe, median_interval, paired_ratio

__all__ = [
    "CpuMeter",
    "Distribution",
    "LoadClient",
    "PairedRatio",
    "RequestRecord",
    "Summary",
    "describe",
    "describe_machine",
    "median_interval",
    "paired_ratio",
    "poisson_arrivals",
    "process_tree",
    "pss_mb",
    "result_document",
    "run_closed",
    "run_open",
    "summarize",
]
