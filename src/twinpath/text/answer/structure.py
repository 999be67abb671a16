"""What an answer that calls tools looks like, as data: a grammar is built from it where calls are demanded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Stands in a `CallShape` for the tool's name.
NAME = "\0"
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class CallBranch:
    """One tool: literals around the JSON of its arguments, which `schema` describes."""

    name: str
    begin: str
    schema: Mapping[str, Any]
    end: str


@dataclass(frozen=True, slots=True)
class CallStructure:
    """`opening` call (`separator` call)* `closing`, each call one of `branches`. Literals may spell control tokens.

    `trigger`: what an answer's calls begin with, whichever tool; free text may come before it where calls are optional.
    """

    opening: str
    branches: tuple[CallBranch, ...]
    separator: str
    closing: str
    trigger: str


@dataclass(frozen=True, slots=True)
class CallShape:
    """How a format spells calls; `begin` holds `NAME`. `mark`: may come before calls that look like other answers."""

    opening: str
    begin: str
    end: str
    separator: str
    closing: str
    mark: str = ""

    def structure(self, tools: Sequence[Mapping[str, Any]], *, marked: bool = False) -> CallStructure:
        """For some tools: mappings with `name` and, not always, `parameters`. `marked`: with the mark."""
        branches = tuple(
            CallBranch(
                tool["name"], self.begin.replace(NAME, tool["name"]), tool.get("parameters") or ANY_OBJECT, self.end
            )
            for tool in tools
        )
        opening = self.mark + self.opening if marked else self.opening
        trigger = opening or self.begin.partition(NAME)[0]
        return CallStructure(opening, branches, self.separator, self.closing, trigger)
