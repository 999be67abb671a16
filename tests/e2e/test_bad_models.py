"""A model that cannot be served: one line that says what and where, exit code 2, nothing left running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.served import refused

pytestmark = pytest.mark.slow


def refused_in_one_line(*arguments: str) -> str:
    code, stderr = refused(*arguments, "--port", "0")
    assert code == 2, stderr
    assert stderr.startswith("twinpath: ") and "\n" not in stderr, stderr
    return stderr


def test_no_such_model() -> None:
    assert "no-such-model" in refused_in_one_line("no-such-model")


def test_no_such_file(tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    assert str(missing) in refused_in_one_line(str(missing))


def test_not_a_gguf(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("shopping list\n" * 100)
    assert path.name in refused_in_one_line(str(path))


def test_empty_directory(tmp_path: Path) -> None:
    assert str(tmp_path) in refused_in_one_line(str(tmp_path))


def test_unknown_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["OtherModel"], "model_type": "other"}))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    assert "other" in refused_in_one_line(str(tmp_path)).lower()


@pytest.mark.model
@pytest.mark.parametrize("num_bytes", [3, 4096, 1_000_000])
def test_truncated_gguf(default_model_path: Path, tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "cut.gguf"
    with default_model_path.open("rb") as whole:
        path.write_bytes(whole.read(num_bytes))
    assert path.name in refused_in_one_line(str(path))


@pytest.mark.model
def test_corrupted_metadata(default_model_path: Path, tmp_path: Path) -> None:
    """The number of metadata entries becomes absurd; nothing may be allocated for it."""
    path = tmp_path / "corrupt.gguf"
    content = bytearray(default_model_path.read_bytes())
    content[16:24] = b"\xff" * 8
    path.write_bytes(content)
    assert path.name in refused_in_one_line(str(path))
