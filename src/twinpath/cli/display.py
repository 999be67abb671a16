"""What a starting server shows: progress bars and the table of resolved settings. All of it on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from twinpath.cli.resolve import unread_settings
from twinpath.cli.settings import SETTINGS
from twinpath.config import ServeConfig
from twinpath.ipc.messages import Ready


class Report(Protocol):
    """Progress so far: units done, of how many (0: unknown), and what is being done."""

    def __call__(self, done: int, total: int, what: str) -> None: ...


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False)


@contextmanager
def download_bar(console: Console) -> Iterator[Report]:
    """A byte progress bar that appears with the first report, so that nothing shows when nothing is fetched."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with reporting(console, columns) as report:
        yield report


@contextmanager
def load_bar(console: Console) -> Iterator[Report]:
    """A progress bar for loading weights; gone once the engine is ready."""
    with reporting(console, (TextColumn("{task.description}"), BarColumn()), transient=True) as report:
        yield report


@contextmanager
def reporting(
    console: Console,
    columns: tuple[ProgressColumn, ...],
    transient: bool = False,
) -> Iterator[Report]:
    # Where nothing can be redrawn, what would vanish again is not drawn at all.
    progress = Progress(*columns, console=console, transient=transient, disable=transient and not console.is_terminal)
    tasks: dict[str, TaskID] = {}

    def report(done: int, total: int, what: str) -> None:
        if not tasks:
            progress.start()
        if what not in tasks:
            tasks[what] = progress.add_task(escape(what), total=total or None)
        progress.update(tasks[what], completed=done, total=total or None)

    try:
        yield report
    finally:
        if tasks:
            progress.stop()


#: Setting -> the engine's fact that says what it came to.
SHOWN_BY_FACT = {
    "threads": "threads",
    "isa": "kernels",
    "activation_bits": "activations",
    "kv_cache_mb": "KV memory",
    "page_size": "KV pool",
    "max_num_batched_tokens": "step tokens",
}


def settings_table(config: ServeConfig, info: Ready, origins: Mapping[str, str]) -> Table:
    """The settings in effect, then what the engine says of itself. `origins`: setting -> flag, environment or file."""
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_column(style="dim")
    table.add_row("model", escape(f"{config.model} ({config.engine.model_path})"))
    for name, value in settings_rows(config, info):
        table.add_row(name, escape(value), origins.get(name, ""))
    for name, value in info.facts.items():
        origin = next((origins.get(setting, "") for setting, fact in SHOWN_BY_FACT.items() if fact == name), "")
        origin = origins.get(name, origin)
        table.add_row(escape(name), escape(value), origin)
    return table


def settings_rows(config: ServeConfig, info: Ready) -> Iterator[tuple[str, str]]:
    """Every setting that has an effect and that no fact shows; secrets only counted."""
    sections = {
        "serve": config,
        "http": config.http,
        "engine": config.engine,
        "scheduler": config.scheduler,
        "slo": config.slo,
    }
    unread = unread_settings(config.engine)
    for setting in SETTINGS:
        if setting.name in info.facts or SHOWN_BY_FACT.get(setting.name) in info.facts or setting.name in unread:
            continue
        value = getattr(sections[setting.section], setting.field)
        if setting.name == "api_key":
            yield "api_key", f"{len(value)} keys" if value else "none: open to everybody who can connect"
        elif setting.name == "slo_class":
            yield "slo_class", ", ".join(slo.name for slo in value) or "none"
        elif setting.name == "key_class":
            yield "key_class", f"{len(value)} keys" if value else "none"
        elif setting.name == "chat_template":
            yield "chat_template", "the model's own" if value is None else f"overridden ({len(value)} characters)"
        elif setting.name == "grpc_port":
            yield "grpc_port", "none" if value is None else str(value)
        elif setting.name == "max_model_len":
            yield "max_model_len", f"{info.max_model_len:,} tokens"
        else:
            yield setting.name, spelled(value)


def spelled(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "auto"
    return ", ".join(value) if isinstance(value, tuple) else str(value)
