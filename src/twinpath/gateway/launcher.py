"""What starts an engine and gives the link to it: a process when serving, a thread in tests."""

from __future__ import annotations

from typing import Protocol

from twinpath.ipc.link import LinkHandler
from twinpath.ipc.messages import ToEngine


class EngineHandle(Protocol):
    """One started engine."""

    @property
    def pid(self) -> int | None:
        """None when it shares our process."""
        ...

    def send(self, message: ToEngine) -> None: ...

    def ring(self) -> None:
        """A request is coming: be awake when it is there. Any number of times, and without need."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """Ask it to leave (Drain), wait up to `timeout_s`, then `kill` and wait."""
        ...

    async def kill(self) -> str:
        """End it at once, wait until it is gone, and say how it ended (exit code or signal)."""
        ...


class Launcher(Protocol):
    """Starts engines, one after another."""

    async def launch(self, handler: LinkHandler) -> EngineHandle:
        """Start one; `handler` hears LoadProgress, Ready or Fatal, then the rest. Raises when it cannot."""
        ...
