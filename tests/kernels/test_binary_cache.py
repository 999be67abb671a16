"""What was compiled is found again, whole or not at all, whoever else writes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from twinpath.kernels.binary_cache import BinaryCache


class Maker:
    """Makes one content and counts how often."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.num_made = 0

    def __call__(self) -> bytes:
        self.num_made += 1
        return self.content


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_made_once(tmp_path: Path) -> None:
    maker = Maker(b"code")
    folder = tmp_path / "not" / "there yet"
    for _ in range(3):
        assert BinaryCache(folder).get(["source", "sm_90a"], maker) == b"code"
    assert maker.num_made == 1


@pytest.mark.parametrize(
    "other", [["source", "sm_80"], ["sourcesm_90a"], ["source", "sm_90a", ""], ["sources", "m_90a"]]
)
def test_anything_else_it_is_made_from_is_another(tmp_path: Path, other: list[str]) -> None:
    cache = BinaryCache(tmp_path)
    cache.get(["source", "sm_90a"], Maker(b"one"))
    assert cache.get(other, Maker(b"two")) == b"two"


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:20], lambda b: b[:40] + b"?" + b[41:], lambda b: b + b"x"]
)
def test_damaged_code_is_made_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    cache, maker = BinaryCache(tmp_path), Maker(bytes(range(200)))
    cache.get(["source"], maker)
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(["source"], maker) == maker.content
    assert cache.get(["source"], maker) == maker.content
    assert maker.num_made == 2


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    num_writers = 8
    together = Barrier(num_writers)
    content = b"abcd" * 100_000

    def write(_: int) -> bytes:
        def make() -> bytes:
            together.wait(timeout=60)  # Nobody has written when the last one has looked.
            return content

        return BinaryCache(tmp_path).get(["source"], make)

    with ThreadPoolExecutor(num_writers) as threads:
        assert set(threads.map(write, range(num_writers))) == {content}
    assert only_file(tmp_path).stat().st_size == 32 + len(content)
    maker = Maker(b"never")
    assert BinaryCache(tmp_path).get(["source"], maker) == content and not maker.num_made


def test_a_folder_that_cannot_be_used_costs_only_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    maker = Maker(b"code")
    for _ in range(2):
        assert BinaryCache(blocked / "folder").get(["source"], maker) == b"code"
    assert maker.num_made == 2


def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        BinaryCache(tmp_path).get(["source"], fail)
    assert not list(tmp_path.iterdir())
