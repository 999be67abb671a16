"""Azure LLM inference traces of 2023: CSV of time, prompt and generated tokens. Nothing is known to be shared."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

from twinpath.errors import UserError
from twinpath.plan.arrivals import Trace, Turn

COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read_azure(path: Path) -> Trace:
    """Raises: UserError naming the line that is not a row of this format."""
    turns: list[Turn] = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                # Seven digits of a second; datetime reads six.
                stamp = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
                prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (KeyError, ValueError, AttributeError) as error:
                raise UserError(f"{path}:{len(turns) + 2}: not an Azure row: {error}") from None
            turns.append(Turn(stamp.timestamp(), max(prompt, 1), max(output, 1)))
    turns.sort(key=lambda turn: turn.at_s)
    return Trace(path.stem, turns)
