"""Files and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
#: A GPU kernel is one function because it is one launch: cutting it moves twenty pointers, not a thought.
MAX_KERNEL_LINES = 80
MAX_CONSTRUCTOR_PARAMETERS = 7
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}

SOURCES = sorted((ROOT / "src").rglob("*.py"))
OTHERS = sorted(p for home in ("tests", "benchmarks") for p in (ROOT / home).rglob("*.py"))
NATIVE = sorted(p for suffix in ("*.cpp", "*.h", "*.hpp") for p in (ROOT / "src").rglob(suffix))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_files_are_short() -> None:
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in [*SOURCES, *OTHERS, *NATIVE]}
    assert not {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}


def most_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    is_kernel = any(ast.unparse(decorator).startswith("triton.jit") for decorator in function.decorator_list)
    return MAX_KERNEL_LINES if is_kernel else MAX_FUNCTION_LINES


def test_functions_are_short() -> None:
    lengths = {
        f"{name_of(path)}:{f.name}": length
        for path, f in functions()
        if (length := (f.end_lineno or f.lineno) - f.lineno + 1) > most_lines(f)
    }
    assert not lengths


def test_constructors_take_few_parameters() -> None:
    """A class with more collaborators than this is two classes. Plain data has no written constructor."""
    counts = {
        f"{name_of(path)}:{f.lineno}": len(f.args.args) - 1 + len(f.args.kwonlyargs)
        for path, f in functions()
        if f.name == "__init__"
    }
    assert not {name: count for name, count in counts.items() if count > MAX_CONSTRUCTOR_PARAMETERS}


def test_files_are_named_by_their_noun() -> None:
    assert not [name_of(path) for path in SOURCES if {path.stem, path.parent.name} & BANNED_NAMES]
