"""What the documents name exists, and they stay within their limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinpath.cli.settings import SETTINGS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ROOTS = ("src/", "tests/", "docs/", "deploy/", "benchmarks/", ".ci/")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_named_paths_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    in_code = [word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()]
    links = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    missing = [
        w for w in in_code if w.startswith(ROOTS) and not set("*<") & set(w) and not (ROOT / w.split(":")[0]).exists()
    ]
    missing += [target for target in links if target and not (path.parent / target).exists()]
    assert not missing


def test_readme_is_short_and_starts_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120
    commands = re.findall(r"^(make [a-z]+)", text, flags=re.MULTILINE)
    assert commands[:2] == ["make serve", "make test"]


def test_architecture_opens_with_the_life_of_a_request() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[0] == "Life of a request"


def test_every_room_is_in_the_architecture_table_and_says_what_it_owns() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for package in sorted((ROOT / "src" / "twinpath").glob("*/__init__.py")):
        assert f"`{package.parent.name}/`" in text, package.parent.name
        docstring = package.read_text(encoding="utf-8").lstrip()
        assert docstring.startswith('"""') and len(docstring.split('"""')[1]) > 60, (
            f"{package} does not say what it owns"
        )


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    assert not [setting.flag for setting in SETTINGS if f"`{setting.flag}`" not in text]


def test_make_targets_named_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for document in DOCUMENTS:
        for target in re.findall(r"`make ([a-z-]+)`", document.read_text(encoding="utf-8")):
            assert target in targets, f"{name_of(document)}: make {target}"
