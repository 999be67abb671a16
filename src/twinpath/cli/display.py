"""What a starting server shows: progress bars and the table of resolved settings. All of it on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from twinpath.config import ServeConfig


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
    columns: tuple[TextColumn | BarColumn | DownloadColumn | TransferSpeedColumn | TimeRemainingColumn, ...],
    transient: bool = False,
) -> Iterator[Report]:
    progress = Progress(*columns, console=console, transient=transient)
    tasks: dict[str, int] = {}

    def report(done: int, total: int, what: str) -> None:
        if not tasks:
            progress.start()
        if what not in tasks:
            tasks[what] = progress.add_task(escape(what), total=total or None)
        progress.update(tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

    try:
        yield report
    finally:
        if tasks:
            progress.stop()


def settings_table(config: ServeConfig, facts: Mapping[str, str], origins: Mapping[str, str]) -> Table:
    """The resolved settings, then what the engine says of itself. `origins`: setting -> flag, environment or file."""
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="bold")
    table.add_column()
    table.add_column(style="dim")
    for name, value in settings_rows(config):
        table.add_row(name, escape(value), origins.get(name, ""))
    for name, value in facts.items():
        table.add_row(escape(name), escape(value), "engine")
    return table


def settings_rows(config: ServeConfig) -> Iterator[tuple[str, str]]:
    """Every setting with its value in effect; secrets only counted."""
    from twinpath.cli.settings import SETTINGS

    sections = {"serve": config, "http": config.http, "engine": config.engine, "scheduler": config.scheduler}
    yield "model", f"{config.model} ({config.engine.model_path})"
    for setting in SETTINGS:
        value = getattr(sections[setting.section], setting.field)
        if setting.name == "api_key":
            yield "api_key", f"{len(value)} keys" if value else "none: open to everybody who can connect"
        elif setting.name == "chat_template":
            yield "chat_template", "the model's own" if value is None else f"overridden ({len(value)} characters)"
        elif isinstance(value, bool):
            yield setting.name, "on" if value else "off"
        elif value is None:
            yield setting.name, "auto"
        elif isinstance(value, tuple):
            yield setting.name, ", ".join(value)
        else:
            yield setting.name, str(value)
