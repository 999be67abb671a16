"""The thread governor's decisions, on a simulated machine (`governor.cpp`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from native.test_kernels import compile_with
from twinpath.native import build


@pytest.fixture(scope="module")
def governor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("governor") / "governor"
    compile_with(build.find_compiler(), [], [Path(__file__).with_name("governor.cpp")], binary)
    return binary


@pytest.mark.parametrize(
    ("scenario", "least", "most"),
    [
        pytest.param("idle", 100, 100, id="nobody-else: all threads"),
        pytest.param("busy", 0, 10, id="one thread is faster beside a busy process"),
        # 2000 of 4000 steps, less 1.6 s (the longest pause) of steps that take 4.3 ms with one thread.
        pytest.param("passing", 40, 60, id="all threads again once the busy process is gone"),
        pytest.param("jitter", 95, 100, id="stalls that cost less than a thread brings"),
        pytest.param("mixed", 100, 100, id="steps of other sizes are not compared"),
    ],
)
def test_share_of_steps_with_all_threads(governor: Path, scenario: str, least: int, most: int) -> None:
    done = subprocess.run([governor, scenario], capture_output=True, text=True, timeout=20, check=True)
    assert least <= int(done.stdout) <= most
