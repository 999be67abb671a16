"""How an engine process is started. Imports next to nothing: it is the first thing that a starting server does."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import NamedTuple

#: In the place of settings: they come through standard input.
LATER = "-"


class Bell:
    """Wakes a process that waits, where a message will come soon.

    A write to a socket draws its reader to the writer's processor, where it has to wait until that one sleeps; an
    eventfd does not. Does nothing where the system has none.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if hasattr(os, "eventfd") else -1

    def ring(self) -> None:
        if self.descriptor >= 0:
            os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Spawned(NamedTuple):
    """A started engine process, our end of its socket, and what wakes it."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    bell: Bell


def spawn_worker(settings: str, stdin: int = subprocess.DEVNULL) -> Spawned:
    """`python -m twinpath.worker`. Raises: OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    bell = Bell()
    with theirs:
        command = [sys.executable, "-m", "twinpath.worker", "--fd", str(theirs.fileno()), "--settings", settings]
        passed = [theirs.fileno()]
        if bell.descriptor >= 0:
            command += ["--bell", str(bell.descriptor)]
            passed.append(bell.descriptor)
        try:
            # A session of its own: Ctrl-C in our terminal is ours to answer, the worker is drained by message.
            process = subprocess.Popen(command, stdin=stdin, pass_fds=passed, start_new_session=True)
        except OSError:
            ours.close()
            bell.close()
            raise
    return Spawned(process, ours, bell)


class SpareWorker:
    """An engine process that imports what it needs before anybody knows its settings. A context: a process that nobody
    took ends with it."""

    def __init__(self) -> None:
        """Without one, where none can be started."""
        self._spawned: Spawned | None = None
        self._told: str | None = None
        with contextlib.suppress(OSError):
            self._spawned = spawn_worker(LATER, subprocess.PIPE)

    def tell(self, settings: str) -> None:
        """The settings are known: it loads."""
        if self._spawned is None or self._told is not None:
            return
        process = self._spawned.process
        assert process.stdin is not None
        self._told = settings
        try:
            with process.stdin as stdin:
                stdin.write(settings.encode())
        except OSError:  # It has gone.
            self.close()

    def take(self, settings: str) -> Spawned | None:
        """The process and what is ours of it, from now on the caller's. None: there is none with these settings."""
        self.tell(settings)
        if self._told != settings:
            self.close()
        spawned, self._spawned = self._spawned, None
        return spawned

    def close(self) -> None:
        spawned, self._spawned = self._spawned, None
        if spawned is None:
            return
        process, ours, bell = spawned
        ours.close()
        bell.close()
        process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def __enter__(self) -> SpareWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
