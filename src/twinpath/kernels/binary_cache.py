"""Compiled kernels on disk: what was compiled once for a card is not compiled again.

A file is a SHA-256 of its content, then the content, under a name that is the hash of everything it was made from. It
appears at once, by a rename, so readers and writers need no lock; one that was damaged is as good as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


class BinaryCache:
    """Compiled code by what it was made from. A folder that cannot be used costs time, nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, made_from: Sequence[str], make: Callable[[], bytes]) -> bytes:
        """What `make` makes, from disk where it was made before.

        made_from: everything that decides the result: source, options, architecture, the compiler's version.
        """
        path = self._folder / _name(made_from)
        content = _read(path)
        if content is None:
            content = make()
            with contextlib.suppress(OSError):
                _write(path, content)
        return content


def _name(made_from: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in made_from:
        digest.update(f"{len(part.encode())}:".encode() + part.encode())
    return digest.hexdigest() + ".bin"


def _read(path: Path) -> bytes | None:
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content = stored[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == stored[:_DIGEST_BYTES] else None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
