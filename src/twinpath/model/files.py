"""Which local files make up a model: what `source.resolve` returns and what every loader takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from twinpath.errors import ModelLoadError

CONFIG_NAME = "config.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this disk: a GGUF file, a directory with `config.json` and safetensors, or an engine's script."""

    path: Path
    format: Literal["gguf", "safetensors", "scripted"]
    #: Sampling defaults that come with an alias, on top of the model's own generation_config.
    default_sampling: Mapping[str, float] = field(default_factory=dict)


def files_at(path: Path) -> ModelFiles:
    """What lies at `path`. Raises: ModelLoadError when that is no model."""
    if path.is_dir():
        return _files_in(path)
    if not path.exists():
        raise ModelLoadError(f"{path}: no such file or directory")
    if not path.is_file():
        raise ModelLoadError(f"{path}: is no regular file")
    if path.suffix == ".safetensors":
        raise ModelLoadError(f"{path}: name the directory that holds it and its {CONFIG_NAME}")
    return ModelFiles(path, "gguf")


def _files_in(directory: Path) -> ModelFiles:
    if (directory / CONFIG_NAME).is_file():
        return ModelFiles(directory, "safetensors")
    found = sorted(directory.glob("*.gguf"))
    if len(found) == 1:
        return ModelFiles(found[0], "gguf")
    if found:
        raise ModelLoadError(f"{directory}: holds {len(found)} GGUF files; name one of them")
    raise ModelLoadError(f"{directory}: holds neither {CONFIG_NAME} nor a GGUF file")
