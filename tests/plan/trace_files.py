"""Tiny files in the formats of the public traces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def mooncake_row(timestamp: int, num_input: int, num_output: int, blocks: list[int]) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": num_input, "output_length": num_output, "hash_ids": blocks}


def claude_row(
    session: str, turn: int, num_input: int, num_output: int, blocks: list[list[int]], think: float | None = 1.0
) -> dict[str, Any]:
    return {
        "s": session,
        "i": turn,
        "ty": "n",
        "t": 3.0 * turn,
        "in": num_input,
        "out": num_output,
        "api": 2.0,
        "think": think,
        "stop": "tool_use",
        "it": ["text"],
        "h": blocks,
    }


def write_azure(path: Path, rows: Iterable[tuple[str, int, int]]) -> Path:
    lines = [f"{stamp},{num_input},{num_output}\n" for stamp, num_input, num_output in rows]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines), encoding="utf-8")
    return path
