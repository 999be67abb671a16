"""Mooncake traces (conversation, synthetic, toolagent): JSON lines with a global id per 512-token prefix block."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec

from twinpath.errors import UserError
from twinpath.plan.arrivals import Trace, Turn
from twinpath.plan.tokens import to_ranges

_BLOCK_TOKENS = 512


class _Row(msgspec.Struct):
    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_mooncake(path: Path, seed: int) -> Trace:
    """Rows in order of time. Stamps of a coarse clock are spread over its ticks, the same way for the same seed.

    Raises: UserError naming the line that is not a row of this format.
    """
    decoder = msgspec.json.Decoder(_Row)
    rows: list[_Row] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                rows.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise UserError(f"{path}:{number}: not a Mooncake row: {error}") from None
    rows.sort(key=lambda row: row.timestamp)
    tick_ms = clock_tick([row.timestamp for row in rows])
    random = Random(f"mooncake {seed}")
    times = [(row.timestamp + random.uniform(0, tick_ms)) / 1e3 for row in rows] if tick_ms else None
    turns = [
        Turn(
            row.timestamp / 1e3 if times is None else times[index],
            row.input_length,
            max(row.output_length, 1),
            to_ranges(row.hash_ids),
        )
        for index, row in enumerate(rows)
    ]
    turns.sort(key=lambda turn: turn.at_s)
    notes = (f"stamps {tick_ms / 1e3:g} s apart were spread uniformly over their tick",) if tick_ms else ()
    return Trace(path.stem, turns, _BLOCK_TOKENS, notes=notes)


def clock_tick(stamps: list[int]) -> int:
    """The tick of a coarse clock, 0 for a fine one.

    Coarse: on average three or more rows share a stamp (the conversation trace: 12,031 rows on 1,180 stamps). The tick
    is then the median distance of neighbouring stamps.
    """
    distinct = sorted(set(stamps))
    if len(distinct) < 2 or len(stamps) < 3 * len(distinct):
        return 0
    gaps = sorted(after - before for before, after in pairwise(distinct))
    return gaps[len(gaps) // 2]
