"""How large a pattern or grammar is once its repetitions are written out: told from its text, before it is compiled.

The estimate reads what both pattern and Lark syntax have in common: groups, and `{n}`, `{n,m}`, `~n`, `~n..m` after a
part. What it does not know counts as one, so it never refuses what is small.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from twinpath.errors import InvalidRequest

#: Most positions of a pattern or grammar with its repetitions written out.
MAX_EXPANDED = 20_000
#: Estimates stop here.
_ENDLESS = 10**12
#: Each may end at any place, all at once: `.*` five thousand times took nine seconds to compile.
_ENDLESS_SIZE = 20
#: Terminals that refer to others are followed so deep.
_MAX_DEPTH = 64

# Texts are hostile, and a search holds the interpreter: nothing here looks far ahead in vain, or twice at one place.
# What is not closed goes to its end.
_ESCAPE = r"\\(?:[pPxuU]\{[^}]{0,64}\}|.)"
_CLASS = r"\[\^?\]?(?:\\.|\[:\^?\w{1,16}:\]|[^\]\\])*+\]?"
_REPEAT = r"\{(?P<least>\d++)?(?P<comma>,)?(?P<most>\d++)?\}"
#: Of one line.
STRING = r'"(?:\\[^\n]|[^"\\\n])*+"?'
_MARK = re.compile(r"\\.|[*+]", re.DOTALL)
_OPEN = r"\((?:\?[^:)]{0,64}:|\?P?<\w{1,64}>)?"
_PATTERN = re.compile(rf"(?P<open>{_OPEN})|(?P<close>\))|{_REPEAT}|{_ESCAPE}|{_CLASS}|.", re.DOTALL)
_LARK = re.compile(
    rf"(?P<open>\()|(?P<close>\))|{_REPEAT}|~\s*(?P<from>\d+)(?:\s*\.\.\s*(?P<to>\d+))?"
    rf"|(?P<text>{STRING})|/(?P<pattern>(?:\\.|[^/\\])++)/?|(?P<name>[A-Za-z_]\w*)|%json|//[^\n]*|.",
    re.DOTALL,
)
_RULE = re.compile(r"^[?!]?(?P<name>[A-Za-z_][\w-]*)(?:\[[^\]\n]*\])?(?:\.-?\d+)?\s*(?:::=|:)", re.MULTILINE)


def pattern_size(pattern: str) -> int:
    """Positions of a regular expression; of one with very many repetitions without end, those count more."""
    num_endless = sum(match[0] in "*+" for match in _MARK.finditer(pattern))
    return max(_size(_PATTERN, pattern, lambda _: 1), _ENDLESS_SIZE * num_endless)


def check_pattern(pattern: str, param: str) -> None:
    """Raises: InvalidRequest when it is too large to be followed."""
    if (size := pattern_size(pattern)) > MAX_EXPANDED:
        raise InvalidRequest(f"'{param}' {too_large(size)}.", param=param, code="invalid_grammar")


def check_lark(text: str, param: str) -> None:
    """Lark, or EBNF of the `::=` kind.

    Raises: InvalidRequest when a rule is too large to be followed."""
    for name, size in lark_sizes(text).items():
        if size > MAX_EXPANDED:
            raise InvalidRequest(
                f"'{param}' cannot be used: rule '{name}' {too_large(size)}.", param=param, code="invalid_grammar"
            )


def too_large(size: int) -> str:
    shown = str(size) if size < _ENDLESS else "very many"
    return f"has {shown} positions with its repetitions written out; at most {MAX_EXPANDED} are accepted"


def rule_bodies(text: str) -> dict[str, str]:
    """Of each rule and terminal, what stands after its colon."""
    heads = list(_RULE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return {head["name"]: text[head.end() : end] for head, end in zip(heads, ends, strict=False)}


def lark_sizes(text: str) -> dict[str, int]:
    """Of each rule and terminal. A terminal becomes one automaton with all that it refers to; a rule refers."""
    bodies = rule_bodies(text)
    sizes: dict[str, int] = {}

    def size(name: str, depth: int) -> int:
        if name not in sizes:
            sizes[name] = 1  # Of one that refers to itself.
            sizes[name] = _size(_LARK, bodies[name], lambda match: _part(match, lambda n: referred(n, depth + 1)))
        return sizes[name]

    def referred(name: str, depth: int) -> int:
        return size(name, depth) if name in bodies and name.isupper() and depth < _MAX_DEPTH else 1

    for name in bodies:
        size(name, 0)
    return sizes


def _part(match: re.Match[str], referred: Callable[[str], int]) -> int:
    if match["text"]:
        return max(1, len(match["text"]) - 2)
    if match["pattern"]:
        return pattern_size(match["pattern"])
    if match["name"]:
        return referred(match["name"])
    return 0


def _size(syntax: re.Pattern[str], text: str, part: Callable[[re.Match[str]], int]) -> int:
    totals, last = [0], 0  # Of each open group; of the part that a repetition would repeat, not in its total yet.
    for match in syntax.finditer(text):
        groups = match.groupdict()
        if match["open"]:
            totals[-1] += last
            totals.append(0)
            last = 0
        elif match["close"]:
            inner = totals.pop() + last if len(totals) > 1 else last
            last = inner
        elif (times := _times(groups)) is not None:
            last = min(last * max(times, 1), _ENDLESS)
        elif match[0] not in "*+?^$|" and not match[0].isspace():
            totals[-1] += last
            last = part(match)
        elif syntax is _PATTERN and match[0].isspace():
            totals[-1] += last
            last = 1
    return min(sum(totals) + last, _ENDLESS)


def _times(groups: dict[str, str | None]) -> int | None:
    """Of a repetition; None: it is none."""
    for key in ("to", "from", "most", "least"):
        if digits := groups.get(key):
            return int(digits[:12])
    return None
