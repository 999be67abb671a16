"""One table gives flags, environment variables, file keys and defaults."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from twinpath.cli.app import app
from twinpath.cli.settings import SECTIONS, SETTINGS, load_file, spell_flags
from twinpath.errors import UserError

#: Fields that no flag sets: derived from the model, or sections themselves.
NOT_SETTINGS = {"model", "engine", "http", "scheduler", "slo", "default_sampling", "model_path"}


def test_every_config_field_is_a_setting() -> None:
    covered = {(setting.section, setting.field) for setting in SETTINGS}
    for section, config in SECTIONS.items():
        names = {field.name for field in fields(config)} - NOT_SETTINGS
        assert names == {field for where, field in covered if where == section}


def test_names_are_unique() -> None:
    names = [name for setting in SETTINGS for name in (setting.name, *setting.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "flag",
    [
        "host",
        "port",
        "api-key",
        "served-model-name",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "dtype",
        "enable-chunked-prefill",
        "enable-prefix-caching",
        "gpu-memory-utilization",
        "http-keepalive",
        "http-max-connections",
    ],
)
def test_names_of_other_servers_are_kept(flag: str) -> None:
    assert f"--{flag}" in {setting.flag for setting in SETTINGS}


def test_toml_file_takes_dashes_and_aliases(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('model = "smollm2-135m"\nmax-batch-size = 8\nmax_num_tokens = 256\nhttp-keepalive = false\n')
    assert load_file(path) == {
        "model": "smollm2-135m",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "http_keepalive": False,
    }


def test_json_file(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    path.write_text(json.dumps({"port": 8123}))
    assert load_file(path) == {"port": 8123}


def test_two_names_of_one_setting_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("max_num_seqs = 8\nmax_batch_size = 9\n")
    with pytest.raises(UserError, match="max_num_seqs is set twice"):
        load_file(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "max_batchsize = 3", "unknown setting 'max_batchsize'; did you mean max_batch_size"),
        ("a.toml", "port = ", "not valid TOML"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", "[1]", "must hold a table"),
        ("a.json", '{"api_key": {"secret": 1}}', "api_key has a value of the wrong type (dict)"),
        ("a.toml", "api_key = [1]", "api_key has a value of the wrong type (list)"),
        ("a.toml", "threads = true", "threads has a value of the wrong type (bool)"),
        ("a.toml", "port = 2026-01-01", "port has a value of the wrong type (date)"),
    ],
)
def test_wrong_file_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        load_file(path)
    assert message in str(raised.value) and str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_boolean_flags_take_a_value() -> None:
    assert spell_flags(["serve", "--http-keepalive=true", "--enable-prefix-caching=False", "--port=1"]) == [
        "serve",
        "--http-keepalive",
        "--no-enable-prefix-caching",
        "--port=1",
    ]


@pytest.mark.parametrize(
    ("words", "spelled"),
    [
        (["--lanes", "--policy", "twinpath"], ["--lanes=on", "--policy", "twinpath"]),
        (["--lanes"], ["--lanes=on"]),
        (["--no-lanes"], ["--lanes=off"]),
        (["--lanes=true", "--port=1"], ["--lanes=on", "--port=1"]),
        (["--lanes", "off", "--port=1"], ["--lanes", "off", "--port=1"]),
    ],
)
def test_lanes_may_be_spelled_like_an_on_off_flag(words: list[str], spelled: list[str]) -> None:
    assert spell_flags(["serve", *words]) == ["serve", *spelled]


def test_help_shows_every_flag_whole_at_80_columns() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    words = {word.strip(",[]") for line in shown.splitlines() for word in line.replace(" / ", " ").split()}
    flags = {flag for setting in SETTINGS for flag in (setting.flag, *setting.flags)}
    assert flags <= words and max(map(len, shown.splitlines())) <= 80
