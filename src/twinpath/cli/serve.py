"""Composes one server: model files -> text side and engine process -> HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console

from twinpath.cli.display import download_bar, load_bar, settings_table, stderr_console
from twinpath.cli.pinned import read_pinned
from twinpath.cli.resolve import cache_dir, unread_settings, with_model
from twinpath.config import HttpConfig, ServeConfig
from twinpath.errors import UserError
from twinpath.ipc.settings import encode_settings

if TYPE_CHECKING:
    from twinpath.api.app import Entrance
    from twinpath.gateway import Replica
    from twinpath.ipc.messages import Ready
    from twinpath.model.files import ModelFiles
    from twinpath.rpc.server import RpcServer
    from twinpath.spawn import SpareWorker
    from twinpath.telemetry.stalls import StallTracer
    from twinpath.text import TextModel

#: A thread that renders or encodes a long prompt lets the loop in so soon (Python's own interval is 5 ms): 32,000
#: tokens take 0.1 s, in which streams and arrivals beside them waited 5 ms each time.
_SWITCH_S = 0.0003
#: How often the loading bar looks at the engine's progress.
LOAD_POLL_S = 0.1


class StartView:
    """What the terminal shows of a start: bars while it lasts, then the settings in effect and the address."""

    def __init__(self, origins: Mapping[str, str]) -> None:
        self.console: Console = stderr_console()
        self._origins = origins
        self._began_s = time.monotonic()

    async def follow_load(self, replica: Replica, starting: asyncio.Task[None], stopped: asyncio.Task[None]) -> None:
        """Show the engine's progress until it is ready, has failed, or nobody waits for it any more."""
        with load_bar(self.console) as report:
            while not (starting.done() or stopped.done()):
                if replica.load is not None:
                    report(replica.load.done, replica.load.total, replica.load.what or "loading")
                await asyncio.wait({starting, stopped}, timeout=LOAD_POLL_S, return_when=asyncio.FIRST_COMPLETED)

    def show_ready(
        self, config: ServeConfig, info: Ready, listener_name: tuple[str, int], rpc_address: str | None
    ) -> None:
        if config.log_level in ("debug", "info"):
            self.console.print(settings_table(config, info, self._origins))
        if rpc_address:
            self.console.print(f"gRPC on {rpc_address}", markup=False)
        host, port = listener_name
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.console.print(f"ready on http://{where} ({time.monotonic() - self._began_s:.1f} s)", markup=False)


def run_server(config: ServeConfig, origins: Mapping[str, str], spare: SpareWorker | None = None) -> int:
    """Serve until stopped; the exit code. `spare` becomes the first engine's process.

    Raises: UserError for what the user can mend, else EngineError.
    """
    from twinpath.api.listener import bind
    from twinpath.telemetry.logging import configure_logging

    view = StartView(origins)
    configure_logging(config.log_level)
    for name in sorted(unread_settings(config.engine) & {name for name, origin in origins.items() if origin}):
        flag = name.replace("_", "-")
        print(f"twinpath: --{flag} has no effect with the {config.engine.kind} engine", file=sys.stderr)
    check_rpc(config.http)
    # First of all: a taken port should not be found out after a download.
    with bind(config.http) as listener:
        files = fetch(config, view.console)
        config = with_model(config, files.path, files.default_sampling)
        if spare is not None:
            spare.tell(encode_settings(config.engine, config.scheduler))
        import uvloop  # From here on the engine loads beside us.

        uvloop.run(serve(config, files, listener, view, spare))
    return 0


def stop_at_eof() -> None:
    """From now on the end of standard input stops this process: whoever holds the other end has gone."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def fetch(config: ServeConfig, console: Console) -> ModelFiles:
    """The model's files on this disk, downloaded and verified when they are not here yet."""
    from twinpath.model.source import resolve

    with download_bar(console) as report:
        return resolve(config.model, cache_dir(), report)


async def serve(
    config: ServeConfig, files: ModelFiles, listener: socket.socket, view: StartView, spare: SpareWorker | None = None
) -> None:
    """Run until a signal stops it. HTTP answers as soon as the text side is there: 503 until the engine is ready."""
    from twinpath.api.idle_gc import IdleCollector
    from twinpath.gateway import ProcessLauncher, Replica, WatchdogLimits

    if config.engine.spin_s:
        sys.setswitchinterval(_SWITCH_S)
    limits = WatchdogLimits(silent_s=config.watchdog_silent_s)
    launcher = ProcessLauncher(config.engine, config.scheduler, spare)
    collector = IdleCollector()
    replica = Replica(
        launcher,
        max_waiting=config.scheduler.max_waiting,
        limits=limits,
        spin_s=config.engine.spin_s or 0.0,
        breathe=collector.breathe if config.engine.spin_s else None,
    )
    # The engine loads in its own process while this one imports the HTTP side and reads the tokeniser.
    starting = asyncio.create_task(replica.start())
    address = listener.getsockname()[:2]
    try:
        text = await asyncio.to_thread(load_text_side, config, files)
        pinned = await asyncio.to_thread(read_pinned, config.pin_templates, text, has_keys=bool(config.http.api_keys))
        replica.holdings.preset(pinned)
        starting = asyncio.create_task(settle(starting, replica))

        from twinpath.api.app import build_entrance
        from twinpath.api.server import StoppableServer

        tracer = trace_stalls(config.scheduler.trace_stalls_ms)
        entrance = build_entrance(config, text, replica, tracer=tracer)
        rpc = await start_rpc(entrance, config.http)
        server = StoppableServer(
            entrance.app,
            config.http,
            drain=replica.drain,
            tick=collector.tick,
            beside=rpc,
            expect=None if config.engine.spin_s else replica.expect,  # Who spins is awake.
        )
        collector.start()
        serving = asyncio.create_task(server.serve([listener]))
        await view.follow_load(replica, starting, serving)
        if starting.done() and starting.exception() is None and replica.info is not None:
            view.show_ready(config, replica.info, address, rpc.address if rpc else None)
        elif not serving.done():
            server.stop()
        await serving
        if starting.done():
            await starting
    finally:
        collector.stop()
        starting.cancel()
        await replica.stop()


def check_rpc(config: HttpConfig) -> None:
    """Raises: UserError when gRPC is asked for and not installed."""
    if config.grpc_port is not None and importlib.util.find_spec("grpc") is None:
        raise UserError("--grpc-port needs grpcio: pip install 'twinpath[grpc]'")


async def start_rpc(entrance: Entrance, config: HttpConfig) -> RpcServer | None:
    """The gRPC server, listening, where one is asked for. Raises: UserError."""
    if config.grpc_port is None:
        return None
    from twinpath.rpc.server import RpcServer

    server = RpcServer(entrance, config)
    server.bind(config.host, config.grpc_port)
    await server.start()
    return server


async def settle(starting: asyncio.Task[None], replica: Replica) -> None:
    """The engine is ready when its templates are. Raises: UserError, EngineError."""
    await starting
    await replica.holdings.settle()


def trace_stalls(threshold_ms: float) -> StallTracer | None:
    """Watch this event loop for as long as the process lives, if somebody wants to know."""
    if not threshold_ms:
        return None
    from twinpath.telemetry.stalls import StallTracer

    tracer = StallTracer(threshold_ms / 1e3)
    tracer.watch_event_loop("http", asyncio.get_running_loop())
    tracer.start()
    return tracer


def load_text_side(config: ServeConfig, files: ModelFiles) -> TextModel:
    from twinpath.text import load_text

    text = load_text(
        files, config.chat_template, tool_format=config.tool_format, reasoning_format=config.reasoning_format
    )
    if config.engine.spin_s:  # Where a tenth of a millisecond counts, the engine takes seconds to load.
        text.tokenizer.warm_up()
    return text
