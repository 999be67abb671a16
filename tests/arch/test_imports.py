"""Import directions, and what a process must not load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "twinpath"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported_roots(tree: ast.Module) -> set[str]:
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            roots.add(node.module.split(".")[0])
    return roots


def test_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")})
    assert result.returncode == 0, result.stdout + result.stderr


def test_torch_stays_in_its_engines_and_their_kernels() -> None:
    allowed = [path for path in TREES if path.is_relative_to(PACKAGE / "engine" / "cuda")]
    allowed += [path for path in TREES if path.parent.name == "engine" and path.name.startswith("reference")]
    allowed += [path for path in TREES if path.is_relative_to(PACKAGE / "kernels")]
    heavy = {"torch", "triton", "transformers"}
    assert not [name_of(path) for path in TREES if path not in allowed and heavy & imported_roots(TREES[path])]


def test_environment_is_read_in_the_cli_only() -> None:
    """Settings are passed down. `native/build.py` runs inside an installer, which has no command line of ours."""
    others = [path for path in TREES if not path.is_relative_to(PACKAGE / "cli") and path.name != "build.py"]
    readers = []
    for path in others:
        attributes = {node.attr for node in ast.walk(TREES[path]) if isinstance(node, ast.Attribute)}
        if attributes & {"environ", "getenv"}:
            readers.append(name_of(path))
    assert not readers


def test_no_module_state_is_rebound() -> None:
    assert not [
        name_of(path) for path, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.Global)
    ]


def test_version_command_loads_almost_nothing() -> None:
    """Scripts and probes ask for the version; it must not cost a framework."""
    code = (
        "import sys; sys.argv = ['twinpath', 'version']\n"
        "from twinpath.cli.main import main; main()\n"
        "assert not {'typer', 'rich', 'numpy', 'msgspec', 'starlette'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / "src")})


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=\[]", line)[0].replace("-", "_") for line in project["dependencies"]} | {"torch"}
    used = set().union(*(imported_roots(tree) for tree in TREES.values())) - {"triton", "cuda"}  # come with torch
    used -= {"grpc", "grpc_health", "grpc_reflection", "grpc_tools", "google"}  # the extra `grpc`; see the next test
    # huggingface-hub is imported as huggingface_hub and so on: only the dash differs.
    assert used - set(sys.stdlib_module_names) - {"twinpath"} <= declared


def test_grpc_is_an_extra_that_only_its_room_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    declared = {re.split(r"[<>=\[]", line)[0] for line in extras["grpc"]}
    assert declared == {"grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf"}
    modules = {"grpc", "grpc_health", "grpc_reflection", "grpc_tools", "google"}
    others = [path for path in TREES if not path.is_relative_to(PACKAGE / "rpc")]
    assert not [name_of(path) for path in others if modules & imported_roots(TREES[path])]
