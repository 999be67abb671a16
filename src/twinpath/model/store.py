"""The cache folder: one directory per fetched model, complete or not there at all.

<cache>/models/<key>/            the files, and `origin.json` (what they were fetched from)
<cache>/locks/<key>.lock         held while a model is fetched
<cache>/partial/<key>/           downloads in progress; kept when the transport can resume them
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinpath.errors import SourceError

#: Told (done bytes, total bytes, what) while something is fetched; total 0: not known.
Progress = Callable[[int, int, str], None]

ORIGIN_NAME = "origin.json"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A fetched model. `path` is what `files_at` takes."""

    name: str
    path: Path
    num_bytes: int


class Store:
    """The layout above, under one folder."""

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir

    def directory(self, source: str) -> Path:
        return self.cache_dir / "models" / _key(source)

    def partial(self, source: str) -> Path:
        path = self.cache_dir / "partial" / _key(source)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def find(self, source: str) -> Path | None:
        """What was published for `source`."""
        origin = _read_origin(self.directory(source))
        return None if origin is None else self.directory(source) / origin["path"]

    def revision(self, source: str) -> str | None:
        """Which revision of `source` was published, where that is known."""
        revision = (_read_origin(self.directory(source)) or {}).get("revision")
        return revision if isinstance(revision, str) else None

    def publish(self, source: str, staged: Path, path: str, revision: str | None = None) -> Path:
        """In one step, make the finished files in `staged` (same file system) the model of `source`."""
        final = self.directory(source)
        final.parent.mkdir(parents=True, exist_ok=True)
        (staged / ORIGIN_NAME).write_text(json.dumps({"source": source, "path": path, "revision": revision}))
        if final.exists():
            shutil.rmtree(final)
        staged.rename(final)
        return final / path

    def models(self) -> list[CachedModel]:
        found = []
        for directory in sorted((self.cache_dir / "models").glob("*")):
            origin = _read_origin(directory)
            if origin is not None:
                found.append(CachedModel(origin["source"], directory / origin["path"], _size_of(directory)))
        return found

    def remove(self, source: str) -> int:
        """Delete a model and what was left of its downloads. Returns the bytes freed; 0 when there was nothing."""
        num_bytes = 0
        with self.locked(source, lambda: None):
            for directory in (self.directory(source), self.cache_dir / "partial" / _key(source)):
                if directory.exists():
                    num_bytes += _size_of(directory)
                    shutil.rmtree(directory)
        return num_bytes

    @contextmanager
    def locked(self, source: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """One process at a time fetches a model; the others wait here and find it done."""
        path = self.cache_dir / "locks" / f"{_key(source)}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Says in one line that the disk is full, or not writable, or no place for a cache."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SourceError(f"{where}: the disk is full; free some space and start again") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise SourceError(f"{where}: cannot be written: {error.strerror}") from None
        if error.filename is not None:  # About a file; the network's errors name none.
            raise SourceError(f"{where}: cannot be used: {error.strerror}: {error.filename}") from None
        raise


def require_space(where: Path, num_bytes: int) -> None:
    """Raises: SourceError when fewer than `num_bytes` are free at `where`."""
    free = shutil.disk_usage(where).free
    if free < num_bytes:
        raise SourceError(f"{where}: the disk is too full: {num_bytes / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _key(source: str) -> str:
    """A readable file name, unique by its hash."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", source.split("://")[-1]).strip("-.")[:60]
    return f"{readable}-{hashlib.sha256(source.encode()).hexdigest()[:10]}"


def _read_origin(directory: Path) -> dict[str, Any] | None:
    try:
        origin = json.loads((directory / ORIGIN_NAME).read_bytes())
    except (OSError, ValueError):
        return None
    valid = isinstance(origin, dict) and isinstance(origin.get("source"), str) and isinstance(origin.get("path"), str)
    return origin if valid else None


def _size_of(directory: Path) -> int:
    return sum(os.lstat(path).st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
