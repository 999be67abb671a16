"""The listening server: uvicorn on uvloop and httptools, connection limits, a drain that ends every stream clearly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from twinpath.api.cors import OriginRule
from twinpath.api.listener import BACKLOG, SPARE_DESCRIPTORS
from twinpath.api.protocol import bounded_protocol
from twinpath.config import HttpConfig

_log = logging.getLogger("twinpath.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Cancelled exchanges get this long to tell their clients.
FAREWELL_S = 1.0
#: Waits for the requests below to finish, up to the given seconds; True when none is left.
Drain = Callable[[float], Awaitable[bool]]


class Tick(Protocol):
    """Called ten times a second, and told whether any exchange is under way."""

    def __call__(self, *, idle: bool) -> None: ...


class Beside(Protocol):
    """A server on the same loop that has no signals of its own."""

    async def stop(self, grace_s: float) -> None:
        """Refuse what is new, let the rest finish within `grace_s`, then end it. A second call may shorten that."""
        ...


class StoppableServer(uvicorn.Server):
    """uvicorn's server with our signals, limits and drain. `stop()` does what the first signal does."""

    def __init__(
        self,
        app: ASGIApp,
        config: HttpConfig,
        *,
        drain: Drain | None = None,
        tick: Tick | None = None,
        beside: Beside | None = None,
        expect: Callable[[], None] | None = None,
    ) -> None:
        """`beside`: another protocol's server, which is drained and ended with this one. `expect` is told that a
        request is being read."""
        super().__init__(_uvicorn_config(app, config, expect))
        self._beside = beside
        self._tick = tick
        self._http = config
        self._drain = drain
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """First call: drain. Second: at once."""
        if self.should_exit:
            self.force_exit = True
            self._hurry.set()
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._tick is not None:
            self._tick(idle=not self.server_state.tasks)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            _log.info("draining %d request(s)", len(self.server_state.tasks))
        beside = asyncio.ensure_future(self._stop_beside())
        await self._wait_for_exchanges()
        await self._end_exchanges()
        await beside
        await self.lifespan.shutdown()

    async def _stop_beside(self) -> None:
        if self._beside is None:
            return
        hurry = asyncio.ensure_future(self._hurry.wait())
        stopping = asyncio.ensure_future(self._beside.stop(self._http.drain_timeout_s))
        await asyncio.wait({hurry, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await self._beside.stop(0.0)
        hurry.cancel()
        await stopping

    async def _wait_for_exchanges(self) -> None:
        """Until all are done, the drain time is over, or somebody is in a hurry."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._hurry.wait())]
        if self.server_state.tasks:
            waits.append(asyncio.ensure_future(_all_of(self.server_state.tasks)))
            if self._drain is not None:
                # New requests on open connections are refused meanwhile.
                drain = asyncio.ensure_future(self._drain(self._http.drain_timeout_s))
                drain.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait(waits, timeout=self._http.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _end_exchanges(self) -> None:
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL_S)
        # What was written is on its way; a reader that takes nothing must not hold the process.
        for connection in list(self.server_state.connections):
            connection.transport.close()
        await asyncio.sleep(0)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop this server; the handlers of before come back afterwards."""
        loop = asyncio.get_running_loop()
        previous = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            for number in _SIGNALS:
                loop.add_signal_handler(number, self.stop)
        except (ValueError, RuntimeError):  # Not the main thread: signals are somebody else's.
            previous = {}
        try:
            yield
        finally:
            for number, handler in previous.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


async def _all_of(tasks: set[asyncio.Task[None]]) -> None:
    while tasks:
        await asyncio.wait(list(tasks))


def _uvicorn_config(app: ASGIApp, config: HttpConfig, expect: Callable[[], None] | None) -> uvicorn.Config:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_fitting = config.max_connections if soft == resource.RLIM_INFINITY else soft - SPARE_DESCRIPTORS
    return uvicorn.Config(
        app,
        # Said, for uvicorn takes an app whose call is no coroutine function for one of ASGI 2.
        interface="asgi3",
        http=bounded_protocol(
            max_connections=min(config.max_connections, num_fitting),
            keepalive=config.keepalive,
            origins=OriginRule(config.allowed_origins),
            expect=expect,
        ),
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        # Nothing here asks for the client's address or scheme: a layer less on the way to the first token.
        proxy_headers=False,
        date_header=True,
        backlog=BACKLOG,
        timeout_keep_alive=config.keepalive_timeout_s,
    )
