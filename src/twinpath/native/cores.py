"""How many threads a step should use on this machine."""

from __future__ import annotations

import os
from pathlib import Path

#: Decode reads weights from memory: past this many cores more threads gain nothing measurable.
MOST_THREADS = 16


def default_threads() -> int:
    """Physical cores this process may run on, cut to its cgroup's quota; at least 1."""
    return max(1, min(_physical_cores(), _quota_cores(), MOST_THREADS))


def _physical_cores() -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(topology.read_text())
        except OSError:
            siblings.add(str(cpu))
    return len(siblings)


def _quota_cores() -> int:
    """A container's CPU limit (cgroup v2), rounded down: threads beyond it are throttled in the middle of a step."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return MOST_THREADS
    return MOST_THREADS if quota == "max" else max(1, int(quota) // int(period))
