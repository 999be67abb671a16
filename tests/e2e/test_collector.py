"""A server that serves does not collect garbage whenever the interpreter would."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from e2e.served import serving, write_script

#: Loaded by every Python that starts with its folder on the path: says on SIGUSR1 whether garbage is collected.
SITE = """
import gc, signal, sys
def tell(*_):
    state = "on" if gc.isenabled() else "off"
    print("collector", state, "frozen", gc.get_freeze_count() > 0, file=sys.stderr, flush=True)
signal.signal(signal.SIGUSR1, tell)
"""


@pytest.mark.slow
def test_a_serving_process_collects_at_quiet_moments_only(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    with serving(write_script(tmp_path), env={"PYTHONPATH": str(tmp_path)}) as served:
        assert served.url
        served.process.send_signal(signal.SIGUSR1)
        assert served.wait_for(re.compile(r"collector (.*)"), 20).group(1) == "off frozen True"
