"""The engine process's settings on its command line: config dataclasses to one JSON argument and back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from twinpath.config import EngineConfig, SchedulerConfig


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """All that an engine process is told at birth."""

    engine: EngineConfig
    scheduler: SchedulerConfig


def encode_settings(engine: EngineConfig, scheduler: SchedulerConfig) -> str:
    return msgspec.json.encode(WorkerSettings(engine, scheduler), enc_hook=str).decode()


def decode_settings(text: str) -> WorkerSettings:
    """Raises: msgspec.DecodeError when the two sides are of different versions."""
    return msgspec.json.decode(text, type=WorkerSettings, dec_hook=_decode_path)


def _decode_path(target: type, value: Any) -> Any:
    if target is Path:
        return Path(value)
    raise NotImplementedError(target)
