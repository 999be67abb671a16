"""Composes one server: model files -> text side and engine process -> HTTP."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import uvloop
from rich.console import Console

from twinpath.cli.display import download_bar, load_bar, settings_table, stderr_console
from twinpath.cli.resolve import cache_dir, with_model
from twinpath.config import ServeConfig

if TYPE_CHECKING:
    from twinpath.gateway import Replica
    from twinpath.model.files import ModelFiles
    from twinpath.text.load import TextModel

#: How often the loading bar looks at the engine's progress.
LOAD_POLL_S = 0.1


def run_server(config: ServeConfig, origins: Mapping[str, str]) -> int:
    """Serve until stopped. Raises UserError for what the user can mend, before or while the engine starts."""
    from twinpath.api.server import bind

    began = time.monotonic()
    console = stderr_console()
    # First of all: a taken port should not be found out after a download.
    with bind(config.http) as listener:
        files = fetch(config, console)
        config = with_model(config, files.path, files.default_sampling)
        return uvloop.run(serve(config, files, listener, Start(console, origins, began)))


class Start:
    """Shows a start-up as it happens, and the table when it is over."""

    def __init__(self, console: Console, origins: Mapping[str, str], began: float) -> None:
        self.console = console
        self.origins = origins
        self.began = began

    def ready(self, config: ServeConfig, replica: Replica, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        if config.log_level in ("debug", "info") and replica.info is not None:
            self.console.print(settings_table(config, replica.info.facts, self.origins))
        self.console.print(f"ready on http://{host}:{port} ({time.monotonic() - self.began:.1f} s)")


def fetch(config: ServeConfig, console: Console) -> ModelFiles:
    """The model's files on this disk, downloaded and verified when they are not here yet."""
    from twinpath.model.source import resolve

    with download_bar(console) as report:
        return resolve(config.model, cache_dir(), report)


async def serve(config: ServeConfig, files: ModelFiles, listener: socket.socket, start: Start) -> int:
    from twinpath.gateway import ProcessLauncher, Replica

    replica = Replica(ProcessLauncher(config.engine, config.scheduler), max_waiting=config.scheduler.max_waiting)
    try:
        # The engine loads in its own process while this one imports the HTTP side and reads the tokeniser.
        text = await started(replica, config, files, start.console)

        from twinpath.api.app import build_app
        from twinpath.api.server import serve as serve_http

        app = build_app(config, text, replica)
        await serve_http(
            app, config.http, listener, on_ready=lambda: start.ready(config, replica, listener), drain=replica.drain
        )
    finally:
        await replica.stop()
    return 0


async def started(replica: Replica, config: ServeConfig, files: ModelFiles, console: Console) -> TextModel:
    """Start the engine and load the text side beside it. Ctrl-C and SIGTERM give up at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.TaskGroup() as group:
            engine = group.create_task(replica.start())
            text = group.create_task(asyncio.to_thread(load_text_side, files, config.chat_template))
            group.create_task(show_loading(replica, engine, console))
        return text.result()
    except* Exception as failures:
        raise failures.exceptions[0] from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def show_loading(replica: Replica, engine: asyncio.Task[None], console: Console) -> None:
    with load_bar(console) as report:
        while not engine.done():
            if replica.load is not None:
                report(replica.load.done, replica.load.total, replica.load.what or "loading")
            await asyncio.wait({engine}, timeout=LOAD_POLL_S)


def load_text_side(files: ModelFiles, chat_template: str | None) -> TextModel:
    from twinpath.text.load import load_text

    return load_text(files, chat_template)
