"""What users write after `serve`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinpath.errors import ModelLoadError, SourceError
from twinpath.model.files import ModelFiles
from twinpath.model.source import ALIASES, cached_models, remove, resolve


def no_progress(done: int, total: int, what: str) -> None:
    pass


def test_local_files_need_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    cache = tmp_path / "cache"
    assert resolve(str(path), cache, no_progress) == ModelFiles(path, "gguf")
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path), cache, no_progress) == ModelFiles(tmp_path, "safetensors")
    assert resolve("scripted:///x/script.json", cache, no_progress) == ModelFiles(Path("/x/script.json"), "scripted")
    assert not cache.exists()
    assert cached_models(cache) == [] and remove("smollm2-135m", cache) == 0
    assert not cache.exists()


def test_a_path_wins_over_nothing_but_an_alias_wins_over_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local.gguf").touch()
    assert resolve("local.gguf", tmp_path / "cache", no_progress).path == Path("local.gguf")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("smollm-135m", "did you mean smollm2-135m?"),
        ("whatever", "aliases are smollm2-135m, gemma3-270m; repositories are hf://org/name"),
        ("ftp://x/y", "unknown scheme 'ftp', known are hf, pypi and scripted"),
        ("hf://x", "expected hf://org/name"),
        ("pypi://x", "expected pypi://name==version"),
        ("", "no such file"),
        ("x" * 5000, "no such file"),
        ("/dev/null", "/dev/null: is no regular file"),
    ],
)
def test_what_cannot_be_found_is_one_line(tmp_path: Path, source: str, says: str) -> None:
    with pytest.raises((SourceError, ModelLoadError)) as caught:
        resolve(source, tmp_path, no_progress)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    """Opening one would wait for its other end."""
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelLoadError, match="is no regular file"):
        resolve(str(tmp_path / "pipe.gguf"), tmp_path, no_progress)


@pytest.mark.model
def test_default_model_is_what_its_pins_say(default_model_path: Path) -> None:
    alias = ALIASES["smollm2-135m"]
    assert default_model_path.stat().st_size == alias.num_bytes
    cache = default_model_path.parents[2]
    files = resolve("smollm2-135m", cache, pytest.fail)
    assert files == ModelFiles(default_model_path, "gguf", {"temperature": 0.0})
    assert "smollm2-135m" in [model.name for model in cached_models(cache)]
