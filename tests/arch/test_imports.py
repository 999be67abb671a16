"""Import directions, and what a serving process must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "twinpath"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MAY_READ_ENVIRONMENT = PACKAGE / "cli"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")})
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_torch_stays_in_the_reference_engine(path: Path) -> None:
    if path.parent.name == "engine" and path.name.startswith("reference"):
        return
    assert not {"torch", "triton", "transformers"} & imported_roots(path)


def imported_roots(path: Path) -> set[str]:
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            roots.add(node.module.split(".")[0])
    return roots


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_environment_is_read_in_the_cli_only(path: Path) -> None:
    """Settings are passed down. `native/build.py` runs inside an installer, which has no command line of ours."""
    if path.is_relative_to(MAY_READ_ENVIRONMENT) or path == PACKAGE / "native" / "build.py":
        return
    names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not names & {"environ", "getenv"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_module_state_is_rebound(path: Path) -> None:
    assert not [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Global)]


def test_version_command_loads_almost_nothing() -> None:
    """Scripts and probes ask for the version; it must not cost a framework."""
    code = (
        "import sys; sys.argv = ['twinpath', 'version']\n"
        "from twinpath.cli.main import main; main()\n"
        "assert not {'typer', 'rich', 'numpy', 'msgspec', 'starlette'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / "src")})
