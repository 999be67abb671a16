"""Runs `selftest.cpp` against every kernel set: this machine's, and NEON under qemu if a cross compiler is there."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from twinpath.native import build

SELFTEST = Path(__file__).with_name("selftest.cpp")
HOST_SETS = {"x86_64": ["avx512vnni", "avxvnni", "avx2", "portable"], "aarch64": ["neon", "portable"]}
CANNOT_RUN_HERE = 77


def compile_with(compiler: list[str], flags: list[str], inputs: list[Path], output: Path) -> None:
    command = [*compiler, "-std=c++17", "-O2", f"-I{build.CSRC}", *flags, *map(str, inputs), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def host_selftest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The self-test linked with the very objects of the built library."""
    build.build_native()
    objects = [
        path for path in (build.LIB_HOME / "objects").glob("*.o") if path.name.startswith(("kernels_", "dispatch-"))
    ]
    binary = tmp_path_factory.mktemp("selftest") / "selftest"
    compile_with(build.find_compiler(), ["-pthread"], [SELFTEST, *objects], binary)
    return binary


@pytest.mark.parametrize("name", HOST_SETS.get(platform.machine(), ["portable"]))
def test_every_kernel_of_a_set(host_selftest: Path, name: str) -> None:
    done = subprocess.run([host_selftest, name], capture_output=True, text=True, timeout=100, check=False)
    if done.returncode == CANNOT_RUN_HERE:
        pytest.skip(f"this processor does not run {name}")
    assert done.returncode == 0, done.stdout
    assert f"{name}: " in done.stdout and " 0 failed" in done.stdout


def test_neon_under_emulation(tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)")
    kernels = next(unit for unit in build.plan_units("aarch64") if unit.source.name == "kernels_neon.cpp")
    kernels_object, binary = tmp_path / "kernels_neon.o", tmp_path / "selftest"
    compile_with([compiler], [*kernels.flags, "-c"], [kernels.source], kernels_object)
    compile_with([compiler], ["-static", "-DSELFTEST_TABLE=kernels_neon"], [SELFTEST, kernels_object], binary)
    done = subprocess.run([emulator, binary], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert "neon: " in done.stdout and " 0 failed" in done.stdout
