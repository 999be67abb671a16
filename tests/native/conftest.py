"""The native library, built once when the tree's sources are newer."""

from __future__ import annotations

import pytest

from twinpath.native.build import build_native
from twinpath.native.library import NativeLibrary, load_library


@pytest.fixture(scope="session")
def library() -> NativeLibrary:
    return load_library(build_native())
