"""The process launcher's twin: the real loop and scheduler in a thread, for tests and embedding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from time import monotonic

from twinpath.config import SchedulerConfig
from twinpath.contracts import Constraints, Engine
from twinpath.gateway.launcher import EngineHandle
from twinpath.ipc.link import LinkHandler
from twinpath.ipc.local import LocalChannel, LocalLink, local_pair
from twinpath.ipc.messages import Drain, Fatal, Ready, ToEngine
from twinpath.scheduler import EngineLoop, HeartbeatThread, Scheduler, make_scheduler


class _LocalHandle:
    def __init__(self, link: LocalLink, engine: Engine, thread: Thread) -> None:
        self._link = link
        self._engine = engine
        self._thread = thread
        self.pid: int | None = None

    def send(self, message: ToEngine) -> None:
        self._link.send(message)

    def ring(self) -> None:
        """Threads of one process share its caches."""

    async def stop(self, timeout_s: float) -> None:
        self._link.send(Drain())
        await asyncio.to_thread(self._thread.join, timeout_s)
        await self.kill()

    async def kill(self) -> str:
        """A thread cannot be killed: closing the engine ends a scripted hang, closing the channel ends the loop."""
        self._engine.close()
        self._link.close()
        await asyncio.to_thread(self._thread.join, 5.0)
        return "stopped"


class LocalLauncher:
    """Runs engines made by `make_engine` in threads of this process; pass an engine itself when it needs no restart."""

    def __init__(
        self,
        engine: Engine | Callable[[], Engine],
        config: SchedulerConfig | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        self._make_engine: Callable[[], Engine] = engine if callable(engine) else lambda: engine
        self._config = config or SchedulerConfig()
        self._constraints = constraints
        #: The one launched last, for tests to look into.
        self.engine: Engine | None = None
        self.scheduler: Scheduler | None = None

    async def launch(self, handler: LinkHandler) -> EngineHandle:
        link, channel = local_pair(handler)
        engine = self.engine = self._make_engine()
        scheduler = self.scheduler = make_scheduler(self._config, engine.info, monotonic)
        thread = Thread(target=_serve, args=(engine, scheduler, channel, self._constraints), name="engine", daemon=True)
        thread.start()
        return _LocalHandle(link, engine, thread)


def _serve(engine: Engine, scheduler: Scheduler, channel: LocalChannel, constraints: Constraints | None) -> None:
    loop = EngineLoop(engine, scheduler, channel, owns_process=False, constraints=constraints)
    heartbeat = HeartbeatThread(channel)
    heartbeat.source = loop.heartbeat
    info = engine.info
    channel.send(
        Ready(
            info.vocab_size,
            scheduler.window_tokens,
            info.page_size,
            info.num_pages,
            info.description,
            scheduler.max_running,
        )
    )
    heartbeat.start()
    try:
        loop.run()
    except Exception as error:  # The thread is the engine's "process": it ends with a last word.
        channel.send(Fatal(f"{type(error).__name__}: {error}"))
    finally:
        heartbeat.stop()
        channel.close()
