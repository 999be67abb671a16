"""How many threads a step should use on this machine, and how they share its cores."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

#: Decode reads weights from memory: past this many cores more threads gain nothing measurable.
MOST_THREADS = 16

#: Longer than the default slice (0.7 to 2.8 ms by number of cores), so that whoever wakes beside a step runs at once.
_STEP_SLICE_NS = 4_000_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """Physical cores this process may run on, cut to its cgroup's quota; at least 1."""
    return max(1, min(_physical_cores(), _quota_cores(), MOST_THREADS))


class _SchedAttr(ctypes.Structure):
    """`struct sched_attr`, version 0."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def yield_to_waking_tasks() -> bool:
    """Ask for longer time slices for this thread and the threads it starts; its share of the cores stays the same.

    A step keeps every core busy. Linux >= 6.12 lets a task with a shorter slice that wakes (the gateway with a token to
    write, its client) preempt one with a longer slice at once, instead of when that slice ends. False: not available.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    size = ctypes.sizeof(_SchedAttr)
    attributes = _SchedAttr(size=size, nice=os.getpriority(os.PRIO_PROCESS, 0), runtime_ns=_STEP_SLICE_NS)
    status: int = ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0)
    return status == 0


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
