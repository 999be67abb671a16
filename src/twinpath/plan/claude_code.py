"""Claude Code sessions as recorded by kv-cache-tester: turns with think times and 64-token blocks, ids per session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from twinpath.errors import UserError
from twinpath.plan.arrivals import Trace, Turn
from twinpath.plan.tokens import Blocks

_BLOCK_TOKENS = 64


class _Row(msgspec.Struct):
    """`think`: seconds between the previous answer and this request (a tool or a person), if known."""

    s: str
    i: int
    out: int
    think: float | None
    h: list[tuple[int, int]]
    prompt: int = msgspec.field(name="in")


def read_claude_code(path: Path) -> Trace:
    """Turns of whole sessions. A turn follows the one before; a sub-agent's first turn follows its parent's.

    A sub-agent `NAME/I` follows turn I of NAME at once. Times are not taken: load decides when sessions begin, and each
    next turn comes its think time after the answer before, so a slow server slows its clients as it would.

    Raises: UserError naming the line that is not a row of this format.
    """
    rows = _read_rows(path)
    bases = _block_bases(rows)
    turns: list[Turn] = []
    last_of: dict[str, int] = {}
    turn_of: dict[tuple[str, int], int] = {}
    # Parents first: a sub-agent may stand anywhere in the file.
    for row in sorted(rows, key=lambda row: row.s.count("/")):
        after = last_of.get(row.s, -1)
        if after < 0 and "/" in row.s:
            parent, _, spawned_at = row.s.rpartition("/")
            after = turn_of.get((parent, int(spawned_at)), -1) if spawned_at.isdigit() else -1
        base = bases[row.s]
        blocks: Blocks = tuple((first + base, last + base) for first, last in row.h)
        last_of[row.s] = turn_of[row.s, row.i] = len(turns)
        turns.append(Turn(max(row.think or 0.0, 0.0), max(row.prompt, 1), max(row.out, 1), blocks, row.s, after))
    return Trace(path.stem, turns, _BLOCK_TOKENS, sessions=True)


def _read_rows(path: Path) -> list[_Row]:
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Row)
    rows: list[_Row] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                rows.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise UserError(f"{path}:{number}: not a row of a Claude Code session: {error}") from None
    return rows


def _block_bases(rows: list[_Row]) -> dict[str, int]:
    """Where each session's block ids begin in one id space."""
    highest: dict[str, int] = {}
    for row in rows:
        highest[row.s] = max([highest.get(row.s, 0), *(last for _, last in row.h)])
    bases, base = {}, 0
    for session, last in highest.items():
        bases[session] = base
        base += last + 1
    return bases
