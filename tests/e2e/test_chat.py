"""`twinpath chat` as a person uses it: in a terminal, with keys."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from e2e.served import serving, write_script

pytestmark = pytest.mark.slow
TIMEOUT_S = 60.0
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A `twinpath chat` process on a pseudo-terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.keyboard, screen = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "twinpath", "chat", *arguments],
            stdin=screen,
            stdout=screen,
            stderr=screen,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
            preexec_fn=take_terminal,
        )
        os.close(screen)
        self.output = ""
        self.seen = 0

    def read_until(self, pattern: str) -> str:
        """Output since the last match, up to and with the next one."""
        give_up = time.monotonic() + TIMEOUT_S
        while not (match := re.compile(pattern).search(self.output, self.seen)):
            ready, _, _ = select.select([self.keyboard], [], [], max(0.0, give_up - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.output!r}"
            try:
                self.output += os.read(self.keyboard, 65536).decode("utf-8", "replace")
            except OSError as error:  # Linux says EIO when the last writer has gone.
                raise AssertionError(f"ended without {pattern!r}: {self.output!r}") from error
        text = self.output[self.seen : match.end()]
        self.seen = match.end()
        return text

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.keyboard)


def take_terminal() -> None:
    """In the child: make the pseudo-terminal its controlling one, so that Ctrl-C becomes SIGINT."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def script(tmp_path: Path) -> str:
    return write_script(
        tmp_path,
        engine={"step_ms": 10},
        scripts=[{"match": "slowly", "text": "x" * 3000}],
        default={"text": "fine"},
    )


def test_control_c_stops_the_answer_and_control_d_leaves(script: str) -> None:
    with serving(script) as server:
        terminal = Terminal("--url", server.url)
        try:
            terminal.read_until("> ")
            terminal.press(b"slowly\n")
            terminal.read_until("xxx")
            terminal.press(CTRL_C)
            assert len(terminal.read_until(r"\[stopped\]")) < 3000
            terminal.press(b"/reset\nand now?\n")
            terminal.read_until("fine")
            terminal.read_until("> ")
            terminal.press(CTRL_D)
            assert terminal.process.wait(TIMEOUT_S) == 0
        finally:
            terminal.close()
        assert "Traceback" not in terminal.output


def test_a_chat_that_is_killed_takes_its_server_along(script: str) -> None:
    terminal = Terminal(script)
    try:
        terminal.read_until("> ")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        assert len(family) == 2  # The gateway's process and the engine's.
        terminal.press(b"slowly\n")
        terminal.read_until("xxx")
        terminal.process.kill()
        assert not psutil.wait_procs(family, timeout=TIMEOUT_S)[1]
    finally:
        terminal.close()


def test_chat_starts_and_ends_its_own_server(script: str) -> None:
    terminal = Terminal(script)
    try:
        terminal.read_until("> ")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        assert family
        terminal.press(b"hello\n")
        terminal.read_until("fine")
        terminal.press(b"/exit\n")
        assert terminal.process.wait(TIMEOUT_S) == 0
        assert not psutil.wait_procs(family, timeout=10)[1]
    finally:
        terminal.close()
