from __future__ import annotations

import os
import subprocess
import sys

import pytest

from twinpath.bench import CpuMeter, process_tree, pss_mb
from twinpath.bench.host import process_cpu_s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def child() -> object:
    """A child that has a child of its own; it prints the grandchild's id, and both end with its stdin."""
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0);"
        " print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as root:
        assert root.stdout is not None and root.stdin is not None
        yield root.pid, int(root.stdout.readline())
        root.stdin.close()


def test_tree_holds_descendants_and_their_memory_adds_up(child: tuple[int, int]) -> None:
    root, grandchild = child
    assert process_tree(root) == [root, grandchild]
    assert grandchild in process_tree(os.getpid())
    parts = pss_mb([root]), pss_mb([grandchild])
    assert all(part > 0.5 for part in parts)
    assert pss_mb([root, grandchild]) == pytest.approx(sum(parts), rel=0.2)


def test_a_process_that_is_gone_counts_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert pss_mb([gone.pid]) == 0.0 and process_cpu_s(gone.pid) == 0.0


def test_own_work_is_not_others() -> None:
    meter = CpuMeter([])
    begin = process_cpu_s(os.getpid())
    while process_cpu_s(os.getpid()) < begin + 0.1:
        sum(range(1000))
    machine_and_ours = meter.others_percent()
    assert 0.0 <= machine_and_ours <= 100.0 * (os.cpu_count() or 1)
