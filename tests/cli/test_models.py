"""Fetched models are listed by the name they were asked for, and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinpath.cli.main import run
from twinpath.cli.resolve import cache_dir
from twinpath.model.store import Store

NAME = "hf://org/tiny"


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds one model of 1,000 bytes."""
    monkeypatch.setenv("TWINPATH_CACHE_DIR", str(tmp_path / "cache"))
    staged = tmp_path / "cache" / "staged"
    staged.mkdir(parents=True)
    (staged / "model.gguf").write_bytes(b"x" * 1000)
    return Store(tmp_path / "cache").publish(NAME, staged, "model.gguf")


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert run(["models", "list", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_list_shows_aliases_and_what_is_here(fetched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys)
    assert rows[NAME]["path"] == str(fetched)
    assert rows["smollm2-135m"] == {"name": "smollm2-135m"}


def test_table_says_not_fetched(fetched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list"]) == 0
    assert "not fetched" in capsys.readouterr().out


def test_rm_removes_and_a_second_time_is_an_error(fetched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "rm", NAME]) == 0
    assert not fetched.exists()
    capsys.readouterr()
    assert NAME not in listed(capsys)
    assert run(["models", "rm", NAME]) == 2
    assert capsys.readouterr().err == f"twinpath: {NAME} is not among the fetched models (twinpath models list)\n"


def test_pull_of_something_unknown_is_one_line(fetched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "pull", "smollm2-13b"]) == 2
    assert "did you mean smollm2-135m" in capsys.readouterr().err


def test_cache_follows_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINPATH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/twinpath")
