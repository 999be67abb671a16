"""The engine in its own process: spawned with one end of a socket pair, gone when either side goes."""

from __future__ import annotations

import asyncio
import signal
import subprocess

from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.errors import EngineError
from twinpath.gateway.launcher import EngineHandle
from twinpath.ipc.link import Link, LinkHandler, connect_link
from twinpath.ipc.messages import Drain
from twinpath.ipc.settings import encode_settings
from twinpath.spawn import Bell, SpareWorker, spawn_worker

#: A killed process that has not gone after this hangs in the kernel; we stop waiting and leave it to init.
_KILL_TIMEOUT_S = 5.0


class _ProcessHandle:
    def __init__(self, process: subprocess.Popen[bytes], link: Link, bell: Bell) -> None:
        self._process = process
        self._link = link
        self._bell = bell
        self.send, self.ring = link.send, bell.ring
        self.pid: int | None = process.pid

    async def stop(self, timeout_s: float) -> None:
        self._link.send(Drain())
        await self._wait(timeout_s)
        await self.kill()

    async def kill(self) -> str:
        self._process.kill()
        self._link.close()
        self._bell.close()
        return _describe(await self._wait(_KILL_TIMEOUT_S))

    async def _wait(self, timeout_s: float) -> int | None:
        try:
            return await asyncio.to_thread(self._process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            return None


class ProcessLauncher:
    """Starts `python -m twinpath.worker` with the given settings, in the spare process the first time."""

    def __init__(self, engine: EngineConfig, scheduler: SchedulerConfig, spare: SpareWorker | None = None) -> None:
        self._settings = encode_settings(engine, scheduler)
        self._spare = spare

    async def launch(self, handler: LinkHandler) -> EngineHandle:
        told = self._spare.take(self._settings) if self._spare else None
        try:
            process, ours, bell = told or spawn_worker(self._settings)
        except OSError as error:
            raise EngineError(f"cannot start the engine process: {error}") from None
        return _ProcessHandle(process, await connect_link(ours, handler), bell)


def _describe(exit_code: int | None) -> str:
    if exit_code is None:
        return "does not end"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return f"signal {signal.Signals(-exit_code).name}"
