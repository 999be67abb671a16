"""From the name a user gives to arrivals: a file in one of the known formats, or a composed load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twinpath.errors import UserError
from twinpath.plan.arrivals import SloClass, Trace, TraceSettings, Workload, build_workload
from twinpath.plan.azure import COLUMNS, read_azure
from twinpath.plan.claude_code import read_claude_code
from twinpath.plan.mix import compose_mix
from twinpath.plan.mooncake import read_mooncake

COMPOSED = ("mix", "bursts")


def load_workload(source: str, settings: TraceSettings, classes: Sequence[SloClass]) -> Workload:
    """`source`: a path, "mix" or "bursts". Raises: UserError."""
    return build_workload(read_trace(source, settings), settings, classes)


def read_trace(source: str, settings: TraceSettings) -> Trace:
    """The format is told by the first line. Raises: UserError when it is none that we know."""
    if source in COMPOSED:
        return compose_mix(source, settings.num_requests, settings.seed)
    path = Path(source)
    try:
        with path.open(encoding="utf-8") as file:
            head = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read trace {source}: {getattr(error, 'strerror', None) or error}") from None
    if "hash_ids" in head:
        return read_mooncake(path, settings.seed)
    if head.strip().split(",") == COLUMNS:
        return read_azure(path)
    if '"think"' in head and '"h"' in head:
        return read_claude_code(path)
    raise UserError(f"{source}: neither a Mooncake, an Azure 2023 nor a Claude Code trace; or: {', '.join(COMPOSED)}")
