"""The thread governor and `Welcome` on simulated machines (`*.cpp`), and how a thread changes its core (`core.cpp`)."""

from __future__ import annotations

import os
import subprocess
import sys
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
    ("scenario", "least", "most", "most_us"),
    [
        pytest.param("idle", 100, 100, 2500, id="nobody-else: all threads"),
        pytest.param("busy", 0, 10, 4800, id="one thread is faster beside a busy process"),
        pytest.param("shared", 0, 10, 4800, id="the one thread leaves the busy process's core"),
        # 2000 of 4000 steps, less 1.6 s (the longest pause) of steps that take 4.3 ms with one thread.
        pytest.param("passing", 40, 60, 3900, id="all threads again once the busy process is gone"),
        pytest.param("looking", 49, 60, 3900, id="at once where somebody tells that a core is idle"),
        pytest.param("prompts", 49, 60, 3900, id="at the next prompt, which has all threads anyway"),
        pytest.param("jitter", 95, 100, 3300, id="stalls that cost less than a thread brings"),
        pytest.param("mixed", 100, 100, 2500, id="steps of other sizes are not compared"),
    ],
)
def test_share_of_steps_with_all_threads(governor: Path, scenario: str, least: int, most: int, most_us: int) -> None:
    done = subprocess.run([governor, scenario], capture_output=True, text=True, timeout=20, check=True)
    percent, mean_us = map(int, done.stdout.split())
    assert least <= percent <= most and mean_us <= most_us


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a thread choose its core")
def test_a_thread_leaves_its_core_and_may_use_all_of_them_again(tmp_path: Path) -> None:
    compile_with(
        build.find_compiler(), [], [Path(__file__).with_name("core.cpp"), build.CSRC / "core.cpp"], tmp_path / "core"
    )
    done = subprocess.run([tmp_path / "core"], capture_output=True, text=True, timeout=20, check=True)
    # The system may put it back between the move and the look, but not each time.
    assert int(done.stdout) >= (1 if len(os.sched_getaffinity(0)) > 1 else 0)


@pytest.fixture(scope="module")
def welcome(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("welcome") / "welcome"
    compile_with(build.find_compiler(), [], [Path(__file__).with_name("welcome.cpp")], binary)
    return binary


@pytest.mark.parametrize(
    ("scenario", "least_out", "most_out", "most_still"),
    [
        pytest.param("idle", 0, 0, 0, id="nobody-else: always in"),
        pytest.param("gateway", 0, 0, 0, id="who takes less than half of its time does not end it"),
        # A pause is eight times as long as the stand that it follows.
        pytest.param("busy", 85, 90, 15, id="most of the time out where it only stands still"),
        pytest.param("passing", 40, 60, 8, id="in again once the neighbours are gone"),
    ],
)
def test_a_thread_that_gives_way_is_left_out_where_it_cannot_run(
    welcome: Path, scenario: str, least_out: int, most_out: int, most_still: int
) -> None:
    done = subprocess.run([welcome, scenario], capture_output=True, text=True, timeout=20, check=True)
    out, still = map(int, done.stdout.split())
    assert least_out <= out <= most_out and still <= most_still
