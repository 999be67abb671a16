"""Fetches one wheel into a directory: by pip, or by the index's JSON API where there is no pip."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from twinpath.errors import SourceError
from twinpath.model.aliases import Wheel
from twinpath.model.store import sha256_of

#: Told (done bytes, total bytes) of one wheel; total 0: not known.
ByteProgress = Callable[[int, int], None]

DEFAULT_INDEX = "https://pypi.org/simple"
TIMEOUT_S = 30.0
_POLL_S = 0.1
_CHUNK_BYTES = 1 << 18
#: pip keeps an unfinished file in Python's temporary folder; pointing that at ours keeps it on the cache's disk and
#: lets its size show.
_RUN_PIP = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


def fetch_wheel(wheel: Wheel, directory: Path, progress: ByteProgress, *, index: str | None = None) -> Path:
    """The wheel's file in `directory`, verified; kept when it is there already. `index`: use this index and not pip.

    Raises: SourceError when it cannot be found, fetched or verified.
    """
    present = _find_wheel(wheel, directory)
    if present is not None:
        if _verified(wheel, present):
            return present
        present.unlink()
    if index is None and importlib.util.find_spec("pip") is not None:
        _fetch_with_pip(wheel, directory, progress)
        path = _find_wheel(wheel, directory)
    else:
        path = _fetch_from_index(wheel, directory, progress, index or DEFAULT_INDEX)
    if path is None:
        raise SourceError(f"{wheel.requirement}: the index has no wheel of it")
    if not _verified(wheel, path):
        path.unlink()
        raise SourceError(f"{wheel.requirement}: {path.name} has another sha256 than it must have; nothing was kept")
    num_bytes = path.stat().st_size
    progress(num_bytes, num_bytes)
    return path


def _find_wheel(wheel: Wheel, directory: Path) -> Path | None:
    stem = re.sub(r"[-_.]+", "_", wheel.name)
    found = (path for path in directory.glob("*.whl") if path.name.lower().startswith(f"{stem}-{wheel.version}-"))
    return next(found, None)


def _verified(wheel: Wheel, path: Path) -> bool:
    return wheel.sha256 is None or sha256_of(path) == wheel.sha256


def _fetch_with_pip(wheel: Wheel, directory: Path, progress: ByteProgress) -> None:
    """pip copies what it has downloaded, so for a moment the wheel lies here twice."""
    temporary = directory / "pip"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        _run_pip(wheel, temporary, progress)
        for path in (temporary / "done").glob("*.whl"):
            path.rename(directory / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_pip(wheel: Wheel, temporary: Path, progress: ByteProgress) -> None:
    requirements = temporary / "requirements.txt"
    pin = f" --hash=sha256:{wheel.sha256}" if wheel.sha256 is not None else ""
    requirements.write_text(f"{wheel.requirement}{pin}\n")
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-c", _RUN_PIP, str(temporary), "download", *options, "--progress-bar=off"]
    command += ["--dest", str(temporary / "done"), "--requirement", str(requirements)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        while True:
            progress(_growing_bytes(temporary), wheel.num_bytes or 0)
            try:
                log, _ = process.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        process.kill()
        process.communicate()
    if process.returncode != 0:
        raise SourceError(f"{wheel.requirement}: {_pip_reason(log.decode(errors='replace'))}")


def _growing_bytes(directory: Path) -> int:
    """Size of the largest wheel under `directory`; pip removes folders while we look."""
    sizes = [0]
    for path in directory.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue
    return max(sizes)


def _pip_reason(log: str) -> str:
    """The line of pip's log that says why."""
    if "No space left on device" in log:
        return "the disk is full; free some space and start again"
    if "DO NOT MATCH THE HASHES" in log:
        return "the index's wheel has another sha256 than it must have; nothing was kept"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    # An exception inside pip ends with its traceback, whose last line says what it was.
    reason = lines[-1] if lines and (not errors or errors[-1] == "Exception:") else (errors or ["no reason given"])[-1]
    return f"pip download failed: {reason[:300]}"


def _fetch_from_index(wheel: Wheel, directory: Path, progress: ByteProgress, index: str) -> Path | None:
    page_url = f"{index.rstrip('/')}/{wheel.name}/"
    page = _read_page(wheel, page_url)
    prefix = f"{re.sub(r'[-_.]+', '_', wheel.name)}-{wheel.version}-"
    files = [file for file in page.get("files", []) if isinstance(file, dict)]
    names = {str(file.get("filename", "")): file for file in files}
    name = next((n for n in names if n.lower().startswith(prefix) and n.endswith("-none-any.whl")), None)
    if name is None or "/" in name:
        return None
    expected = wheel.sha256 or names[name].get("hashes", {}).get("sha256")
    target, growing = directory / name, directory / f"{name}.part"
    _download(urllib.parse.urljoin(page_url, names[name]["url"]), growing, progress, wheel)
    if expected is not None and sha256_of(growing) != expected:
        growing.unlink()
        raise SourceError(f"{wheel.requirement}: {name} has another sha256 than it must have; nothing was kept")
    growing.rename(target)
    return target


def _read_page(wheel: Wheel, url: str) -> dict[str, Any]:
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            page = json.load(response)
    except urllib.error.HTTPError as error:
        raise SourceError(f"{wheel.requirement}: the index answers {error.code} at {url}") from None
    except (OSError, HTTPException) as error:
        raise SourceError(f"{wheel.requirement}: the index cannot be reached: {_reason(error)}") from None
    except ValueError:
        raise SourceError(f"{wheel.requirement}: the index at {url} does not speak JSON") from None
    return page if isinstance(page, dict) else {}


def _download(url: str, growing: Path, progress: ByteProgress, wheel: Wheel) -> None:
    """Append to `growing` from where it ends; start over when the server cannot go on from there."""
    start = growing.stat().st_size if growing.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            if response.status != 206:
                start = 0
            _receive(response, growing, start, progress)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise SourceError(f"{wheel.requirement}: the index answers {error.code} at {url}") from None
    except (OSError, HTTPException) as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is None and not _is_network(error):
            raise
        raise SourceError(
            f"{wheel.requirement}: the download broke off ({_reason(error)}); start again to go on"
        ) from None


def _receive(response: HTTPResponse, growing: Path, start: int, progress: ByteProgress) -> None:
    total = start + int(response.headers.get("Content-Length") or 0)
    with growing.open("r+b" if start else "wb") as file:
        file.seek(start)
        while chunk := response.read(_CHUNK_BYTES):
            file.write(chunk)
            progress(file.tell(), total)
        if total > start and file.tell() != total:
            raise HTTPException(f"{file.tell()} of {total} bytes came")


def _is_network(error: OSError) -> bool:
    return isinstance(error, ConnectionError | TimeoutError | urllib.error.URLError)


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason)[:200] or type(error).__name__
