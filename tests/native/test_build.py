"""Building and loading: one clear line when it cannot be done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinpath.errors import NativeBuildError
from twinpath.native import build
from twinpath.native.library import NativeLibrary, load_library


def test_an_unchanged_tree_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch, library: NativeLibrary) -> None:
    monkeypatch.setattr(build, "_run", lambda command: pytest.fail(f"ran {command}"))
    assert build.build_native().exists()


def test_no_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler: none of c\+\+, g\+\+, clang\+\+ is installed"):
        build.find_compiler()


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(build.BuildError, match="no-such-compiler"):
        build.find_compiler()


def test_the_compilers_first_error_is_the_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: NativeLibrary
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "broken.cpp").write_text("int main() { return missing; }\n")
    monkeypatch.setattr(build, "CSRC", sources)
    with pytest.raises(build.BuildError, match=r"broken\.cpp:1.*error.*missing"):
        build.build_native(tmp_path / "out")


def test_windows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.sys, "platform", "win32")
    with pytest.raises(build.BuildError, match="does not support win32"):
        build.build_native(Path("nowhere"))


def test_a_missing_library_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(NativeBuildError, match=r"python -m twinpath\.native\.build"):
        load_library(tmp_path / "absent.so")


def test_a_foreign_library_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(NativeBuildError, match="cannot be loaded"):
        load_library(broken)


def test_a_kernel_set_of_another_machine_is_refused(library: NativeLibrary) -> None:
    with pytest.raises(NativeBuildError, match="'abacus' does not run on this machine"):
        library.isa("abacus")
    assert library.usable_isas()[-1] == "portable"
