"""Has every rule of a Lark grammar a word that ends? `start: "a" start` has none: an answer would go on to its limit.

Only what surely forces a rule to come again counts; what this does not know is taken to end.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from twinpath.grammar.size import STRING, rule_bodies

_PART = re.compile(
    r"(?P<comment>(?://|\#)[^\n]*)"
    rf"|{STRING}i?|/(?:\\.|[^/\\\n])++/?[a-z]*"
    r"|->\s*\w+|<[^>\n]{0,64}>|@\w+"
    r"|\{\s*(?P<least>\d*)[^}\n]{0,40}\}|~\s*(?P<from>\d+)(?:\s*\.\.\s*\d+)?"
    r"|(?P<rule>[a-z_][\w-]*)|[A-Z][\w-]*|(?P<mark>[()\[\]|?*+])|\s+|.",
    re.DOTALL,
)
_LITERAL = re.compile(rf"{STRING}|/(?:\\.|[^/\\\n])++/?")
_MAX_DEPTH = 200
#: A chain of rules in the most awkward order needs as many as it has; what needs more than this is taken to end.
_MAX_ROUNDS = 20


@dataclass(slots=True)
class _Choice:
    """Alternatives, each a row of what it cannot do without: rules and choices."""

    rows: list[list[str | _Choice]] = field(default_factory=lambda: [[]])

    def ends(self, known: set[str]) -> bool:
        return any(all(p in known if isinstance(p, str) else p.ends(known) for p in row) for row in self.rows)


def endless_rule(text: str) -> str | None:
    """Name of a rule, in use, of which no word ever ends; None: there is none, or the text is not understood."""
    if "%lark" in text:
        return None
    bodies = {name: body for name, body in rule_bodies(text).items() if not name.isupper()}
    if "start" not in bodies:
        return None
    choices = {name: _read(body, bodies.keys()) for name, body in bodies.items()}
    known = {name for name, choice in choices.items() if choice is None}
    for _ in range(_MAX_ROUNDS):
        num_known = len(known)
        for name, choice in reversed(choices.items()):  # Rules mostly refer to later ones.
            if choice is not None and name not in known and choice.ends(known):
                known.add(name)
        if len(known) == num_known:
            break
    else:
        return None
    used, to_see = {"start"}, ["start"]
    while to_see:
        name = to_see.pop()
        if name not in known:
            return name
        below = {match["rule"] for match in _PART.finditer(bodies[name]) if match["rule"] in bodies} - used
        used |= below
        to_see += below
    return None


def _read(body: str, rules: Collection[str]) -> _Choice | None:
    """None: not understood."""
    open_choices, last_is_part = [_Choice()], False
    if "%" in _LITERAL.sub("", body):
        return None
    for match in _PART.finditer(body):
        if match["comment"] or match[0].isspace():
            continue
        row = open_choices[-1].rows[-1]
        mark = match["mark"]
        if mark and mark in "([":
            if len(open_choices) > _MAX_DEPTH:
                return None
            open_choices.append(_Choice())
        elif mark and mark in ")]":
            if len(open_choices) == 1:
                return None
            inner = open_choices.pop()
            open_choices[-1].rows[-1].append(inner if mark == ")" else _Choice([[]]))
        elif mark == "|":
            open_choices[-1].rows.append([])
        elif mark in ("?", "*") or "0" in (match["least"], match["from"]) or match["least"] == "":
            if row and last_is_part:
                row.pop()
        elif match["rule"] in rules:
            row.append(match["rule"])
        last_is_part = bool(match["rule"] in rules) or mark in (")", "]")
    return open_choices[0] if len(open_choices) == 1 else None
