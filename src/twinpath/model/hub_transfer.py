"""Moves one file from the Hugging Face hub to this disk: resumed where an earlier process stopped, checked by its hash.

Not by the library's `hf_hub_download`: since version 1 it starts an interrupted file over, which hurts with shards of 5
GB.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from twinpath.errors import SourceError
from twinpath.model.store import sha256_of

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

PART_SUFFIX = ".part"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of one commit, with the size and hashes that the hub states."""

    repo: str
    commit: str
    sibling: RepoSibling

    @property
    def name(self) -> str:
        return self.sibling.rfilename

    def matches(self, path: Path) -> bool:
        """LFS files are named by their sha256, small ones by git's sha1 of a blob."""
        if self.sibling.lfs is not None:
            return sha256_of(path) == self.sibling.lfs.sha256
        if self.sibling.blob_id is None:
            return path.stat().st_size == self.sibling.size
        content = path.read_bytes()
        sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        return sha1.hexdigest() == self.sibling.blob_id


def fetch_file(remote: RemoteFile, directory: Path, report: Callable[[int], None]) -> None:
    """Bring `remote` to its place below `directory`, unless it is there. `report` is told the bytes that came so far.

    Raises: SourceError when its hash is wrong; the library's own errors.
    """
    path = directory / remote.name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise SourceError(f"hf://{remote.repo}: the file name {remote.name!r:.100} leads out of the repository")
    if path.is_file() and remote.matches(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Named by content: what an earlier process left may be of another commit.
    identity = remote.sibling.lfs.sha256 if remote.sibling.lfs is not None else remote.sibling.blob_id
    part = path.with_name(f"{path.name}.{str(identity)[:16]}{PART_SUFFIX}")
    with _watched(part, report):
        _append(remote, part)
    if not remote.matches(part):
        part.unlink()
        where = f"hf://{remote.repo}: {remote.name}"
        raise SourceError(f"{where} came damaged (its hash is not the hub's); start again to fetch it anew")
    part.replace(path)


def _append(remote: RemoteFile, part: Path) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented there

    url = hf_hub_url(remote.repo, remote.name, revision=remote.commit)
    location = get_hf_file_metadata(url).location
    headers = build_hf_headers()
    if urlsplit(location).netloc != urlsplit(url).netloc:
        # A storage host must not see the token.
        headers.pop("authorization", None)
    with part.open("ab") as file:
        http_get(location, file, resume_size=file.tell(), headers=headers, expected_size=remote.sibling.size)


@contextlib.contextmanager
def _watched(growing: Path, report: Callable[[int], None]) -> Iterator[None]:
    """Report the size of an unfinished file while the body runs; the library's own bars stay silent."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    done = threading.Event()

    def poll() -> None:
        while not done.wait(_POLL_S):
            with contextlib.suppress(OSError):
                report(growing.stat().st_size)

    were_disabled = are_progress_bars_disabled()
    disable_progress_bars()
    thread = threading.Thread(target=poll, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if not were_disabled:
            enable_progress_bars()
