"""docs/api.md says of every field of the schemas whether it is honoured, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from twinpath.api.normalize import NEUTRAL_VALUES
from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest, SamplingFields

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "Fields of both generation endpoints": SamplingFields,
    "Chat": ChatCompletionRequest,
    "Completions": CompletionRequest,
}


def rows(section: str) -> list[tuple[list[str], str]]:
    """The fields of each row and their verdict."""
    body = TEXT.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ") for line in body.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", row[0]), row[1].strip()) for row in cells]


def documented(section: str) -> dict[str, str]:
    """Field -> verdict; of `stream_options.include_usage` and `messages[].content` the field that has them."""
    found: dict[str, str] = {}
    for names, verdict in rows(section):
        for name in filter(None, (re.split(r"[.\[]", name)[0] for name in names)):
            found.setdefault(name, verdict)
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_in_the_table(section: str) -> None:
    struct = SECTIONS[section]
    shared = set() if struct is SamplingFields else set(SamplingFields.__struct_fields__)
    own = set(struct.__struct_fields__) - shared
    told = set(documented(section)) | (set(documented("Fields of both generation endpoints")) & own)
    assert own - told == set(), "not in docs/api.md"
    assert set(documented(section)) - set(struct.__struct_fields__) == set(), "no such field"


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_refused_is_marked_so(section: str) -> None:
    verdicts = documented(section)
    assert set(verdicts.values()) <= {"yes", "accepted", "400"}
    assert {name for name, verdict in verdicts.items() if verdict == "400"} == set(verdicts) & set(NEUTRAL_VALUES)
