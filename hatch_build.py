"""Build hook: compiles the native step library into the wheel, or into the tree for an editable install.

`src/twinpath/native/build.py` drives the compiler. It is loaded by path: nothing of twinpath is installed yet.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY_HOME = "twinpath/native/_lib"


class NativeBuildHook(BuildHookInterface):
    """Adds the compiled library and a platform tag: any Python 3, but only this kind of machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        refuse_unsupported_platform()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        source_home = Path(self.root, "src", LIBRARY_HOME)
        if version == "editable":
            compile_library(self.root, source_home)
            return
        self._scratch = Path(tempfile.mkdtemp(prefix="twinpath-build-"))
        library = compile_library(self.root, self._scratch)
        build_data["force_include"][str(library)] = f"{LIBRARY_HOME}/{library.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def refuse_unsupported_platform() -> None:
    if sys.platform == "win32":
        raise SystemExit("twinpath: Windows is not supported; use Linux (x86-64, aarch64), macOS (arm64) or WSL 2.")


def platform_tag() -> str:
    """The wheel's platform tag: what the library was compiled for, not what the interpreter could also run."""
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    # A universal interpreter says 10.9, which arm64 never had.
    return "macosx_11_0_arm64" if tag.startswith("macosx") and tag.endswith("universal2") else tag


def compile_library(root: str, out_dir: Path) -> Path:
    """Compile into `out_dir`; a failure is one line, not a traceback."""
    out_dir.mkdir(parents=True, exist_ok=True)
    builder = load_by_path(Path(root, "src", "twinpath", "native", "build.py"))
    try:
        return Path(builder.build_native(out_dir))
    except builder.BuildError as error:
        raise SystemExit(f"twinpath: {error}") from error


def load_by_path(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("twinpath_native_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
