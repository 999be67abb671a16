"""Compiles the native step library: `python -m twinpath.native.build`, or from the wheel's build hook (loaded by path).

One translation unit per instruction set, each with its own flags; the library picks one at run time. Standard library
only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CSRC = Path(__file__).parent / "csrc"
LIB_HOME = Path(__file__).parent / "_lib"
LIBRARY_NAME = "libtwinpath_step.dylib" if sys.platform == "darwin" else "libtwinpath_step.so"

_COMMON_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-pthread", "-Wall", "-Wextra",
)  # fmt: skip
#: Source name -> flags on top. `-ffp-contract=off` keeps the portable twins and the sampler bit-equal everywhere.
_PLAIN_FLAGS = {"sampler.cpp": ("-ffp-contract=off",), "kernels_portable.cpp": ("-ffp-contract=off",)}
#: Machine -> source of an instruction set -> (its flags, the macro that tells dispatch.cpp it is there).
_ISA_SOURCES: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "x86_64": {
        "kernels_avx2.cpp": (("-mavx2", "-mfma", "-mf16c"), "TP_HAVE_AVX2"),
        "kernels_avxvnni.cpp": (("-mavx2", "-mfma", "-mf16c"), "TP_HAVE_AVXVNNI"),
        "kernels_avx512.cpp": (
            ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni",
             "-mprefer-vector-width=512"),
            "TP_HAVE_AVX512VNNI",
        ),
    },
    "aarch64": {"kernels_neon.cpp": (("-march=armv8.2-a+dotprod+fp16",), "TP_HAVE_NEON")},
}  # fmt: skip


class BuildError(Exception):
    """One line: why the library cannot be built here. (`twinpath.errors` is not importable in a build hook.)"""


@dataclass(frozen=True, slots=True)
class Unit:
    """One source and how it is compiled."""

    source: Path
    flags: tuple[str, ...]


def build_native(out_dir: Path = LIB_HOME) -> Path:
    """The compiled library in `out_dir`, compiled anew only when a source, a flag or the compiler changed.

    Raises:
        BuildError: no compiler, an unsupported platform, or the compiler's first error line.
    """
    machine = _machine()
    compiler = find_compiler()
    units = plan_units(machine)
    out_dir.mkdir(parents=True, exist_ok=True)
    library, stamp = out_dir / LIBRARY_NAME, out_dir / f"{LIBRARY_NAME}.stamp"
    digest = _digest(compiler, units)
    if library.exists() and stamp.exists() and stamp.read_text() == digest:
        return library
    objects_dir = out_dir / "objects"
    objects_dir.mkdir(exist_ok=True)
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        objects = list(pool.map(lambda unit: _compile(compiler, unit, objects_dir), units))
    with tempfile.TemporaryDirectory(dir=out_dir) as scratch:
        linked = Path(scratch, LIBRARY_NAME)
        _run([*compiler, "-shared", "-pthread", *map(str, objects), "-o", str(linked)])
        os.replace(linked, library)
    stamp.write_text(digest)
    for old in set(objects_dir.iterdir()) - set(objects):
        old.unlink(missing_ok=True)
    return library


def plan_units(machine: str) -> list[Unit]:
    """Every source of csrc/ that belongs on `machine`, slowest first."""
    isa_sources = _ISA_SOURCES[machine]
    foreign = {name for sources in _ISA_SOURCES.values() for name in sources} - set(isa_sources)
    present = {path.name: path for path in sorted(CSRC.glob("*.cpp")) if path.name not in foreign}
    macros = tuple(f"-D{macro}" for name, (_, macro) in isa_sources.items() if name in present)
    units = []
    for name, path in present.items():
        extra = isa_sources[name][0] if name in isa_sources else _PLAIN_FLAGS.get(name, ())
        if name == "dispatch.cpp":
            extra = (*extra, *macros)
        units.append(Unit(path, (*_COMMON_FLAGS, *extra)))
    return sorted(units, key=lambda unit: not unit.source.name.startswith("kernels_"))


def find_compiler() -> list[str]:
    """$CXX (it may carry arguments), else the first of c++, g++, clang++."""
    chosen = os.environ.get("CXX")
    for candidate in [chosen] if chosen else ["c++", "g++", "clang++"]:
        words = shlex.split(candidate)
        if words and shutil.which(words[0]):
            return words
    what = f"$CXX ({chosen}) is not an executable" if chosen else "none of c++, g++, clang++ is installed"
    raise BuildError(f"no C++ compiler: {what} (Debian: apt install g++; macOS: xcode-select --install)")


def _machine() -> str:
    if sys.platform not in ("linux", "darwin"):
        raise BuildError(f"the native step does not support {sys.platform}: use Linux or macOS (on Windows, WSL 2)")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    target = os.environ.get("TWINPATH_TARGET_MACHINE", machine)  # cross-compiling: set together with CXX
    if target not in _ISA_SOURCES:
        raise BuildError(f"the native step does not support {target}: it needs x86-64 or aarch64")
    return target


def _digest(compiler: list[str], units: list[Unit]) -> str:
    digest = hashlib.sha256(repr((compiler, [(u.source.name, u.flags) for u in units])).encode())
    for path in [*sorted(CSRC.glob("*.h")), *sorted(u.source for u in units)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compile(compiler: list[str], unit: Unit, objects_dir: Path) -> Path:
    out = objects_dir / f"{unit.source.stem}-{_digest(compiler, [unit])[:16]}.o"
    if out.exists():
        return out
    with tempfile.TemporaryDirectory(dir=objects_dir.parent) as scratch:
        made = Path(scratch, out.name)
        _run([*compiler, *unit.flags, "-c", str(unit.source), "-o", str(made)])
        os.replace(made, out)
    return out


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()
        raise BuildError(f"{command[0]} failed: {lines[0] if lines else f'exit status {done.returncode}'}")


if __name__ == "__main__":
    try:
        print(build_native())
    except BuildError as problem:
        raise SystemExit(f"twinpath: {problem}") from problem
