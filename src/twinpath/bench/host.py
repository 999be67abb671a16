"""What the machine is and how busy others kept it: recorded with every number, because a shared machine lies."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def _machine_busy_s() -> float:
    """CPU seconds that all processes together have used since boot (user, nice, system, irq, softirq, steal)."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(value) for value in fields)
    return (user + nice + system + irq + softirq + steal) * TICK_S


def process_tree(root: int) -> list[int]:
    """`root` and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(children.get(pid, []))
    return found


def process_cpu_s(pid: int) -> float:
    """User plus system seconds of one process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S


def pss_mb(pids: Iterable[int]) -> float:
    """Sum of proportional set sizes in MB: shared pages counted once over the tree."""
    total_kb = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total_kb += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total_kb / 1000 * 1.024


class CpuMeter:
    """CPU used by processes that are not ours, as percent of one core, from construction to the call."""

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = [*roots]
        self._begin = time.perf_counter()
        self._ours = self._ours_s()
        self._machine = _machine_busy_s()

    def _ours_s(self) -> float:
        pids = {pid for root in self._roots for pid in process_tree(root)} | {os.getpid()}
        return sum(process_cpu_s(pid) for pid in pids)

    def others_percent(self) -> float:
        machine, ours = _machine_busy_s() - self._machine, self._ours_s() - self._ours
        elapsed = max(time.perf_counter() - self._begin, 1e-9)
        return round(max(machine - ours, 0.0) / elapsed * 100, 1)


def _output(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _caches() -> dict[str, str]:
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        caches[f"L{level} {kind}"] = size
    return caches


def describe_machine() -> dict[str, Any]:
    """CPU, caches, memory, kernel, governor, compilers, Python, load at the time, and the commit under test."""
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    wanted = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "features": [name for name in wanted if name in flags.split()],
        "virtual": "hypervisor" in flags.split(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "governor": governor.read_text().strip() if governor.exists() else "not readable",
        "compiler": _output("c++", "--version").splitlines()[:1],
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "commit": _output("git", "rev-parse", "HEAD"),
        "uncommitted": bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
    }
