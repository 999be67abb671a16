"""The cache folder: whole models or none, one fetcher at a time, a full disk in one line."""

from __future__ import annotations

import errno
import multiprocessing
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from twinpath.errors import SourceError
from twinpath.model.store import CachedModel, Store, disk_errors, require_space, sha256_of

SOURCE = "hf://org/name@main"


def staged(store: Store, content: bytes = b"12345") -> Path:
    path = store.partial(SOURCE) / "staged"
    path.mkdir()
    (path / "model.gguf").write_bytes(content)
    return path


def test_published_models_are_found_listed_and_removed(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    assert store.find(SOURCE) is None and store.models() == [] and store.remove(SOURCE) == 0
    path = store.publish(SOURCE, staged(store), "model.gguf")
    assert path.read_bytes() == b"12345"
    assert store.find(SOURCE) == path
    [model] = store.models()
    assert model == CachedModel(SOURCE, path, model.num_bytes) and model.num_bytes >= 5
    assert store.remove(SOURCE) == model.num_bytes
    assert store.find(SOURCE) is None and not path.exists()


def test_publishing_again_replaces(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.publish(SOURCE, staged(store), "model.gguf")
    assert store.publish(SOURCE, staged(store, b"new"), "model.gguf").read_bytes() == b"new"


def test_similar_names_do_not_meet(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = [
        "hf://a/b",
        "hf://a-b",
        "pypi://a/b",
        "hf://a/b@" + "x" * 300,
        "hf://a/b@" + "x" * 299 + "y",
        "hf://../../a",
    ]
    directories = {store.directory(name) for name in names}
    assert len(directories) == len(names)
    assert all(path.parent == tmp_path / "models" and len(path.name) < 100 for path in directories)


def test_unfinished_and_damaged_entries_are_no_models(tmp_path: Path) -> None:
    store = Store(tmp_path)
    staged(store)
    directory = store.directory(SOURCE)
    for content in ("", "[]", '{"source": 1, "path": "x"}'):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "origin.json").write_text(content)
        assert store.find(SOURCE) is None and store.models() == []


def hold(cache: Path, held: Event, release: Event) -> None:
    with Store(cache).locked(SOURCE, lambda: None):
        held.set()
        release.wait(30)


def test_a_second_process_waits_and_says_so(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path, held, release))
    process.start()
    assert held.wait(30)
    waiting, entered = threading.Event(), threading.Event()

    def enter() -> None:
        with Store(tmp_path).locked(SOURCE, waiting.set):
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert waiting.wait(30) and not entered.is_set()
    release.set()
    assert entered.wait(30)
    thread.join()
    process.join(30)
    assert process.exitcode == 0


def test_another_models_lock_does_not_matter(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.locked(SOURCE, pytest.fail), store.locked("other", pytest.fail):
        pass


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "cannot be written"), (errno.EACCES, "cannot be")],
)
def test_disk_errors_are_one_line(tmp_path: Path, number: int, says: str) -> None:
    with pytest.raises(SourceError, match=says) as caught, disk_errors(tmp_path):
        raise OSError(number, "whatever")
    assert str(tmp_path) in str(caught.value)


def test_a_cache_that_is_no_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "cache"
    with (
        pytest.raises(SourceError, match="cannot be used: Not a directory") as caught,
        disk_errors(where),
        Store(where).locked(SOURCE, pytest.fail),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_other_errors_pass() -> None:
    with pytest.raises(OSError, match="odd"), disk_errors(Path("/x")):
        raise OSError(errno.EIO, "odd")


def test_space_is_asked_for_first(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with pytest.raises(SourceError, match="the disk is too full: 1000000000000 MB needed"):
        require_space(tmp_path, 10**18)


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_of(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
