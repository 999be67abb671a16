"""Files and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CONSTRUCTOR_PARAMETERS = 7
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}

SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
NATIVE_SOURCES = sorted(p for suffix in ("*.cpp", "*.h", "*.hpp") for p in (ROOT / "src").rglob(suffix))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *TESTS, *NATIVE_SOURCES], ids=name_of)
def test_file_is_short(path: Path) -> None:
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_FILE_LINES, f"{name_of(path)} has {num_lines} lines; split it"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    functions = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    lengths = {f.name: (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions}
    assert not {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_constructors_take_few_parameters(path: Path) -> None:
    """A class with more collaborators than this is two classes. Plain data (dataclass, Struct) has no written constructor."""
    functions = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef))
    for function in functions:
        if function.name == "__init__":
            num_parameters = len(function.args.args) - 1 + len(function.args.kwonlyargs)
            assert num_parameters <= MAX_CONSTRUCTOR_PARAMETERS, f"{name_of(path)}:{function.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_file_is_named_by_its_noun(path: Path) -> None:
    assert path.stem not in BANNED_NAMES and path.parent.name not in BANNED_NAMES
