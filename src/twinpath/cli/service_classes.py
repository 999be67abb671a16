"""Service classes as they are written: `chat=300,25`, `batch=60000,-,0.5`; and keys that belong to them."""

from __future__ import annotations

import re

from twinpath.config import SloClass, SloConfig
from twinpath.errors import UserError

#: A name is a header value and a metric label.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_CLASSES = 32
_LONGEST_MS = 86_400_000.0
_MOST_WEIGHT = 1000.0


def parse_slo(*, classes: tuple[str, ...], class_of_key: tuple[str, ...], api_keys: tuple[str, ...]) -> SloConfig:
    """Raises: UserError naming the value that is wrong."""
    parsed = tuple(_parse_class(text) for text in classes)
    names = [slo.name for slo in parsed]
    if len(set(names)) < len(names):
        raise UserError(f"--slo-class: {next(name for name in names if names.count(name) > 1)} is given twice")
    if len(names) > _MOST_CLASSES:
        raise UserError(f"--slo-class: at most {_MOST_CLASSES} classes")
    pairs = []
    for text in class_of_key:
        key, equals, name = text.rpartition("=")
        if not equals or not key:
            raise UserError("--key-class: write KEY=NAME")
        if name not in names:
            raise UserError(f"--key-class: there is no class {name!r} (--slo-class)")
        if key not in api_keys:
            raise UserError(f"--key-class: the key of class {name!r} is none of --api-key")
        pairs.append((key, name))
    return SloConfig(parsed, tuple(pairs))


def _parse_class(text: str) -> SloClass:
    name, equals, rest = text.partition("=")
    parts = [part.strip() for part in rest.split(",")]
    if not equals or not _NAME.fullmatch(name.strip()) or len(parts) not in (2, 3):
        raise UserError(f"--slo-class {text!r}: write NAME=TTFT_MS,TPOT_MS[,WEIGHT], with - for no target")
    weight = _number(text, parts[2], _MOST_WEIGHT) if len(parts) == 3 else 1.0
    if weight is None:
        raise UserError(f"--slo-class {text!r}: the weight must be a number")
    return SloClass(name.strip(), _number(text, parts[0], _LONGEST_MS), _number(text, parts[1], _LONGEST_MS), weight)


def _number(text: str, value: str, most: float) -> float | None:
    if value == "-":
        return None
    try:
        number = float(value)
    except ValueError:
        raise UserError(f"--slo-class {text!r}: {value!r} is no number") from None
    if not 0 < number <= most:
        raise UserError(f"--slo-class {text!r}: {value} must be above 0 and at most {most:g}")
    return number
