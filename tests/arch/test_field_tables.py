"""The tables of request fields say what the schemas say."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("field_tables", DOCS / "field_tables.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["field_tables"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def api_rows() -> Iterator[tuple[list[str], str]]:
    """Fields and support of every row of the hand-written tables."""
    for line in (DOCS / "api.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3 and cells[1] in ("yes", "accepted", "400"):
            yield re.findall(r"`([^`]+)`", cells[0]), cells[1]


def test_the_page_is_made_from_today_s_schemas(tables: ModuleType) -> None:
    assert tables.PAGE.read_text(encoding="utf-8") == tables.page(), "run python docs/field_tables.py"


def test_accepted_fields_exist(tables: ModuleType) -> None:
    schemas = json.loads(tables.openapi_document("m"))["components"]["schemas"]
    for struct, accepted in tables.ACCEPTED.items():
        assert accepted <= {path.split(" ")[0] for path, _, _ in tables.rows(struct, schemas)}


def test_the_api_page_explains_every_field_of_the_two_openai_endpoints() -> None:
    explained = {name.split("[")[0].split(".")[0] for names, _ in api_rows() for name in names}
    fields = {*ChatCompletionRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    assert not fields - explained


def test_the_api_page_does_not_contradict_the_tables(tables: ModuleType) -> None:
    known = {*ChatCompletionRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    said = {name: support for names, support in api_rows() for name in names if name in known}
    struct = {name: "ChatCompletionRequest" for name in ChatCompletionRequest.__struct_fields__}
    for name, support in said.items():
        assert support == tables.support(struct.get(name, "CompletionRequest"), name), name
