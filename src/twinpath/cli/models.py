"""`twinpath models`: what can be served by name, and what is on this disk."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from twinpath.cli.display import download_bar, stderr_console
from twinpath.cli.resolve import cache_dir
from twinpath.errors import UserError


def list_models(as_json: bool) -> None:
    """Aliases and fetched models; sizes are those on this disk."""
    from twinpath.model.source import ALIASES, cached_models

    cached = {model.name: model for model in cached_models(cache_dir())}
    names = [*ALIASES, *(name for name in cached if name not in ALIASES)]
    if as_json:
        rows = [
            {"name": name, "path": str(cached[name].path), "bytes": cached[name].num_bytes}
            if name in cached
            else {"name": name}
            for name in names
        ]
        print(json.dumps(rows, indent=2))
        return
    table = Table("model", "size", "path", box=None, padding=(0, 1))
    for name in names:
        model = cached.get(name)
        size = f"{model.num_bytes / 1e6:.0f} MB" if model else "not fetched"
        table.add_row(name, size, str(model.path) if model else "")
    # A pipe has no width that a path could be cut to.
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)


def pull_model(model: str) -> None:
    """Fetch and verify; prints where it lies."""
    from twinpath.model.source import resolve

    with download_bar(stderr_console()) as report:
        print(resolve(model, cache_dir(), report, refresh=True).path)


def remove_model(model: str) -> None:
    from twinpath.model.source import remove

    num_bytes = remove(model, cache_dir())
    if num_bytes == 0:
        raise UserError(f"{model} is not among the fetched models (twinpath models list)")
    print(f"removed {model} ({num_bytes / 1e6:.0f} MB)")
