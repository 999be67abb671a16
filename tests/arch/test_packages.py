"""What we hand out builds from its own contents and works outside the checkout."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from twinpath import __version__
from twinpath.native.build import find_compiler

ROOT = Path(__file__).parents[2]
#: The whole native library is compiled, perhaps on a busy machine.
pytestmark = pytest.mark.timeout(700)
BUILD = [sys.executable, "-m", "build", "--no-isolation"]


def load_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel built from that sdist alone; not optimized, which takes a quarter of the time."""
    out = tmp_path_factory.mktemp("dist")
    quick = tmp_path_factory.mktemp("compiler") / "quick-c++"
    quick.write_text(f'#!/bin/sh\nexec {shlex.join(find_compiler())} "$@" -O0\n')
    quick.chmod(0o755)
    env = {**os.environ, "CXX": str(quick)}
    result = subprocess.run([*BUILD, "--outdir", out, ROOT], env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


@pytest.mark.slow
def test_wheel_works_outside_the_checkout(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("*.whl")
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel]
    subprocess.run(install, check=True, timeout=120)
    env = {**os.environ, "PYTHONPATH": str(site)}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert run("-c", "import twinpath; print(twinpath.__file__)").startswith(str(site))
    assert run("-m", "twinpath", "version") == f"twinpath {__version__}\n"
    findings = {f["name"]: f for f in json.loads(run("-m", "twinpath", "doctor", "--json"))["findings"]}
    assert findings["native step"]["status"] == "ok"


@pytest.mark.slow
def test_wheel_is_for_this_platform_and_has_no_sources(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    assert wheel.name.startswith(f"twinpath-{__version__}-py3-none-") and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len([name for name in names if name.startswith("twinpath/native/_lib/")]) == 1
    assert not [name for name in names if name.endswith((".cpp", ".h"))]
    assert "twinpath/py.typed" in names


@pytest.mark.slow
def test_sdist_has_what_a_build_needs_and_no_build_outputs(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    assert {"pyproject.toml", "hatch_build.py", "LICENSE", "src/twinpath/native/build.py"} <= set(names)
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "src/twinpath/native/csrc").rglob("*") if path.is_file()}
    assert sources <= set(names)
    assert not [name for name in names if "/_lib/" in name or name.endswith((".so", ".pyc"))]


def test_no_compiler_is_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "CXX": str(tmp_path / "no-compiler")}
    command = [*BUILD, "--wheel", "--outdir", tmp_path / "dist", ROOT]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    lines = [line for line in result.stderr.splitlines() + result.stdout.splitlines() if line.startswith("twinpath: ")]
    assert result.returncode != 0 and len(lines) == 1, result.stdout + result.stderr
    assert "compiler" in lines[0]


def test_windows_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(SystemExit, match=r"^twinpath: Windows is not supported"):
        load_hook().refuse_unsupported_platform()


@pytest.mark.parametrize(
    ("platform", "tag"),
    [
        ("linux-x86_64", "linux_x86_64"),
        ("linux-aarch64", "linux_aarch64"),
        ("macosx-11.0-arm64", "macosx_11_0_arm64"),
        ("macosx-10.9-universal2", "macosx_11_0_arm64"),
    ],
)
def test_platform_tag(platform: str, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_platform", lambda: platform)
    assert load_hook().platform_tag() == tag
