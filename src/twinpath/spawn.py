"""How an engine process is started. Imports next to nothing: it is the first thing that a starting server does."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

#: In the place of settings: they come through standard input.
LATER = "-"


def spawn_worker(settings: str, stdin: int = subprocess.DEVNULL) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """`python -m twinpath.worker`, and our end of its socket. Raises: OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        command = [sys.executable, "-m", "twinpath.worker", "--fd", str(theirs.fileno()), "--settings", settings]
        try:
            # A session of its own: Ctrl-C in our terminal is ours to answer, the worker is drained by message.
            process = subprocess.Popen(command, stdin=stdin, pass_fds=(theirs.fileno(),), start_new_session=True)
        except OSError:
            ours.close()
            raise
    return process, ours


class SpareWorker:
    """An engine process that imports what it needs before anybody knows its settings. A context: a process that nobody
    took ends with it."""

    def __init__(self) -> None:
        """Without one, where none can be started."""
        self._spawned: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._told: str | None = None
        with contextlib.suppress(OSError):
            self._spawned = spawn_worker(LATER, subprocess.PIPE)

    def tell(self, settings: str) -> None:
        """The settings are known: it loads."""
        if self._spawned is None or self._told is not None:
            return
        process, _ = self._spawned
        assert process.stdin is not None
        self._told = settings
        try:
            with process.stdin as stdin:
                stdin.write(settings.encode())
        except OSError:  # It has gone.
            self.close()

    def take(self, settings: str) -> tuple[subprocess.Popen[bytes], socket.socket] | None:
        """The process and our end of its socket, from now on the caller's. None: there is none with these settings."""
        self.tell(settings)
        if self._told != settings:
            self.close()
        spawned, self._spawned = self._spawned, None
        return spawned

    def close(self) -> None:
        spawned, self._spawned = self._spawned, None
        if spawned is None:
            return
        process, ours = spawned
        ours.close()
        process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def __enter__(self) -> SpareWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
