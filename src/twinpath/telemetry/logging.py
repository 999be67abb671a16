"""Log lines: one per generation call, on stderr. Ids, counts, times and reasons only; never prompt text, never keys."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

ROOT = "twinpath"
REQUESTS = "twinpath.requests"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(level: str) -> None:
    """Our own loggers to stderr, at `level`; other libraries' from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())


@dataclass(frozen=True, slots=True)
class RequestLine:
    """What is worth knowing of one exchange, milliseconds; TTFT counts from the body's last byte."""

    request_id: str
    engine_id: str
    method: str
    path: str
    status: int
    num_prompt: int
    num_cached: int
    num_output: int
    ttft_ms: float | None
    total_ms: float
    reason: str

    def __str__(self) -> str:
        ttft = "-" if self.ttft_ms is None else f"{self.ttft_ms:.1f}"
        return (
            f'id="{self.request_id}" engine_id={self.engine_id or "-"} {self.method} {self.path} status={self.status} '
            f"prompt={self.num_prompt} cached={self.num_cached} tokens={self.num_output} ttft_ms={ttft} "
            f"total_ms={self.total_ms:.1f} reason={self.reason or '-'}"
        )
