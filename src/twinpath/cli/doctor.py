"""`twinpath doctor`: what this machine offers, and what would stop or slow a server on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

from twinpath import __version__
from twinpath.cli.resolve import cache_dir
from twinpath.config import HttpConfig
from twinpath.errors import UserError

Status = Literal["ok", "warn", "fail"]

#: Instruction sets that a kernel uses, as /proc/cpuinfo spells them.
CPU_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
)
#: Below this the default model and its KV pool do not fit beside a desktop.
MIN_MEMORY_BYTES = 1 << 30
MIN_DISK_BYTES = 1 << 30
#: How long an idle loop is watched, and by how much it may wake late.
STALL_CHECK_S, STALL_MS = 0.3, 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `hint` says what to do about a warning or a failure."""

    name: str
    status: Status
    value: str
    hint: str = ""


def check_versions() -> Iterator[Finding]:
    yield Finding("twinpath", "ok", __version__)
    yield Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")
    names = ("uvicorn", "starlette", "uvloop", "httptools", "msgspec", "tokenizers", "huggingface-hub", "numpy")
    yield Finding("libraries", "ok", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))
    if importlib.util.find_spec("torch") is None:
        yield Finding("torch", "ok", "not installed (CPU serving needs none; GPU: pip install 'torch>=2.11,<2.14')")
    else:
        yield Finding("torch", "ok", importlib.metadata.version("torch"))


def check_platform() -> Iterator[Finding]:
    name = f"{platform.system()} {platform.release()} {platform.machine()}"
    supported = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")}
    if (platform.system(), platform.machine()) in supported:
        yield Finding("platform", "ok", name)
    else:
        yield Finding("platform", "fail", name, "supported: Linux x86-64 and aarch64, macOS arm64")


def check_cpu() -> Iterator[Finding]:
    model, flags = cpu_info()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cpu", "ok", f"{model}, {cores} cores usable")
    present = [feature for feature in CPU_FEATURES if feature in flags]
    yield Finding("cpu features", "ok" if present else "warn", " ".join(present) or "none of those that kernels use")


def cpu_info() -> tuple[str, set[str]]:
    """Model name and feature flags of the first CPU, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), set()
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name") or platform.machine(), flags


def check_compiler() -> Iterator[Finding]:
    from twinpath.native.build import BuildError, find_compiler

    try:
        command = find_compiler()
    except BuildError as error:
        yield Finding("compiler", "warn", "none", f"only needed to install from source: {error}")
        return
    reply = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=10)
    yield Finding("compiler", "ok", reply.stdout.partition("\n")[0] or " ".join(command))


def check_native_step() -> Iterator[Finding]:
    from twinpath.native.cores import default_threads
    from twinpath.native.library import load_library

    library = load_library()
    usable = library.usable_isas()
    threads = default_threads()
    value = f"kernels {library.isa()}, of {', '.join(usable)}; {threads} threads"
    if usable == ["portable"]:
        yield Finding("native step", "warn", value, "no kernels for this CPU: correct, but slow")
    else:
        yield Finding("native step", "ok", value)


def check_gpu() -> Iterator[Finding]:
    """Through nvidia-smi, which needs neither torch nor a CUDA context."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        yield Finding("gpu", "ok", "none found (not needed)")
        return
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    reply = subprocess.run([tool, *query], capture_output=True, text=True, timeout=20)
    if reply.returncode != 0:
        yield Finding("gpu", "warn", "nvidia-smi fails", (reply.stdout + reply.stderr).strip().partition("\n")[0])
    for line in reply.stdout.splitlines() if reply.returncode == 0 else ():
        yield Finding("gpu", "ok", line)


def check_models() -> Iterator[Finding]:
    from twinpath.model.source import cached_models

    home = cache_dir()
    models = cached_models(home)
    existing = next(path for path in (home, *home.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    held = sum(model.num_bytes for model in models)
    value = f"{home}: {len(models)} models, {held >> 20} MiB; {free_bytes >> 20} MiB free"
    if not os.access(existing, os.W_OK):
        yield Finding("model cache", "fail", value, "not writable: set TWINPATH_CACHE_DIR")
    elif free_bytes < MIN_DISK_BYTES:
        yield Finding("model cache", "warn", value, "little room: twinpath models rm, or set TWINPATH_CACHE_DIR")
    else:
        yield Finding("model cache", "ok", value)


def check_ports() -> Iterator[Finding]:
    http = HttpConfig()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((http.host, http.port))
        except OSError as error:
            hint = "another server may run; choose one with --port"
            yield Finding("port", "warn", f"{http.host}:{http.port}: {error.strerror}", hint)
        else:
            yield Finding("port", "ok", f"{http.host}:{http.port} is free")


def check_files() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = HttpConfig().max_connections + 256
    value = f"open files: {soft} now, {hard} at most; {needed} wanted for {HttpConfig().max_connections} connections"
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield Finding("file limit", "warn", value, f"raise it (ulimit -Hn {needed}) or lower --http-max-connections")
    else:
        yield Finding("file limit", "ok", value)


def check_memory() -> Iterator[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = available_memory_bytes() or total
    value = f"{total >> 20} MiB, {available >> 20} MiB available"
    if available < MIN_MEMORY_BYTES:
        yield Finding("memory", "warn", value, "close something, or lower --kv-cache-mb")
    else:
        yield Finding("memory", "ok", value)


def available_memory_bytes() -> int | None:
    """Linux's own estimate of what can be used without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = {key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in lines)}
    return sizes.get("MemAvailable")


def check_stalls() -> Iterator[Finding]:
    """Whether threads of an idle process run when they should: what the machine itself adds to every token."""
    import asyncio

    from twinpath.telemetry.stalls import StallTracer

    tracer = StallTracer()

    async def idle() -> float:
        tracer.watch_event_loop("idle", asyncio.get_running_loop())
        tracer.start()
        worst_s, end_s = 0.0, perf_counter() + STALL_CHECK_S
        while (began_s := perf_counter()) < end_s:
            await asyncio.sleep(0.001)
            worst_s = max(worst_s, perf_counter() - began_s - 0.001)
        tracer.stop()
        return worst_s

    worst_ms = asyncio.run(idle()) * 1e3
    value = f"an idle loop woke at most {worst_ms:.1f} ms late in {STALL_CHECK_S:g} s"
    if worst_ms < STALL_MS:
        yield Finding("stalls", "ok", value)
        return
    where = f" (in {tracer.stalls[-1].frames[0]})" if tracer.stalls else ""
    hint = "other processes take this machine's cores; of a server, --trace-stalls-ms 5 names what holds it up"
    yield Finding("stalls", "warn", f"{value}{where}", hint)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_versions,
    check_platform,
    check_cpu,
    check_compiler,
    check_native_step,
    check_gpu,
    check_models,
    check_ports,
    check_files,
    check_memory,
    check_stalls,
)


def collect(checks: tuple[Callable[[], Iterator[Finding]], ...] = CHECKS) -> list[Finding]:
    """Run every check; one that breaks is itself a finding."""
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check())
        except (UserError, OSError, subprocess.SubprocessError, importlib.metadata.PackageNotFoundError) as error:
            findings.append(Finding(check.__name__.removeprefix("check_").replace("_", " "), "fail", str(error)))
    return findings


def run_doctor(as_json: bool) -> int:
    """Print the findings; exit code 1 when one of them is a failure."""
    findings = collect()
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        print(json.dumps({"ok": not failed, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print_findings(findings)
    return 1 if failed else 0


def print_findings(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table(box=None, show_header=False, padding=(0, 1))
    for finding in findings:
        hint = f"\n[dim]{escape(finding.hint)}[/dim]" if finding.hint else ""
        status = f"[{colours[finding.status]}]{finding.status}[/]"
        table.add_row(status, finding.name, f"{escape(finding.value)}{hint}")
    Console(highlight=False).print(table)
