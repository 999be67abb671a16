"""Tables for a terminal and for Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence

from twinpath.bench import PairedRatio

Row = list[str]


def ratio_cells(ratio: PairedRatio) -> Row:
    """Median, then middle half and extremes, then the number of rounds."""
    spread = f"IQR {ratio.p25:.2f}-{ratio.p75:.2f}, {ratio.min:.2f}-{ratio.max:.2f}"
    return [f"{ratio.median:.2f}", spread, f"n={ratio.rounds}"]


def render(rows: Sequence[Row]) -> str:
    """Rows of cells as a Markdown table; the first row is its head, short rows are padded."""
    num_columns = max(len(row) for row in rows)
    padded = [[*row, *[""] * (num_columns - len(row))] for row in rows]
    widths = [max(len(row[column]) for row in padded) for column in range(num_columns)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in padded
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
