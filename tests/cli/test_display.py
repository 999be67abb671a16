"""The start-up table and the progress bars, rendered to text."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from twinpath.cli.display import download_bar, load_bar, settings_table
from twinpath.cli.settings import SETTINGS
from twinpath.config import EngineConfig, HttpConfig, ServeConfig
from twinpath.ipc.messages import Ready

INFO = Ready(
    vocab_size=512,
    max_model_len=2048,
    page_size=32,
    num_pages=64,
    description="tiny",
    facts={"threads": "2", "kernels": "avx2"},
)


def rows(config: ServeConfig, origins: dict[str, str]) -> dict[str, list[str]]:
    console = Console(file=io.StringIO(), width=200)
    console.print(settings_table(config, INFO, origins))
    assert isinstance(console.file, io.StringIO)
    cells = [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in console.file.getvalue().splitlines()
    ]
    return {name: rest for name, *rest in cells}


def config_with(http: HttpConfig) -> ServeConfig:
    return ServeConfig(model="m", served_model_name="[odd] name", engine=EngineConfig(model_path=Path("m")), http=http)


def test_every_setting_is_shown_with_its_resolved_value() -> None:
    table = rows(config_with(HttpConfig(port=8123, keepalive=False)), {"port": "flag"})
    assert table["port"] == ["8123", "flag"]
    assert table["http_keepalive"] == ["off"]
    assert table["max_model_len"] == ["2,048 tokens"]
    assert table["threads"] == ["2"] and table["kernels"] == ["avx2"]
    assert table["served_model_name"] == ["[odd] name"]
    unread = {"dtype", "gpu_memory_utilization", "batch_invariant", "tensor_parallel_size"}
    assert {setting.name for setting in SETTINGS} - {"isa"} - unread <= table.keys()
    assert not unread & table.keys()


def test_keys_are_counted_and_not_shown() -> None:
    table = rows(config_with(HttpConfig(api_keys=("sesame", "open"))), {})
    assert table["api_key"] == ["2 keys"]
    assert not [cells for cells in table.values() if "sesame" in " ".join(cells)]


def test_nothing_is_drawn_when_nothing_is_fetched() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with download_bar(console):
        pass
    assert isinstance(console.file, io.StringIO) and console.file.getvalue() == ""


def test_download_is_drawn_and_load_leaves_nothing_in_a_log() -> None:
    console = Console(file=io.StringIO(), width=100)
    with download_bar(console) as report:
        report(500_000, 1_000_000, "tiny[1].gguf")
    assert isinstance(console.file, io.StringIO)
    assert "tiny[1].gguf" in console.file.getvalue() and "0.5/1.0 MB" in console.file.getvalue()
    quiet = Console(file=io.StringIO())
    with load_bar(quiet) as report:
        report(1, 2, "loading")
    assert isinstance(quiet.file, io.StringIO) and quiet.file.getvalue() == ""
