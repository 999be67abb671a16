"""The worker's side of the wire: one JSON command per line on stdin, one JSON answer per line on stdout.

A contestant runs in its own process (and, for the peers, its own environment), so this file needs nothing but the
standard library.
A class that offers `describe`, `generate` and `decode_batch` is a contestant; `serve` drives it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Generation:
    """One prompt, greedy. `ttft_ms` runs from the call to the first token's id; `token_ms` holds the gaps after it."""

    ttft_ms: float
    token_ms: list[float]
    token_ids: list[int]


@dataclass(frozen=True)
class BatchDecode:
    """Several sequences decoded together: `step_ms` per step of one token each, prefill not counted."""

    step_ms: list[float]
    token_ids: list[list[int]] = field(default_factory=list)


class Contestant(Protocol):
    """What a system under test must do. Prompts are token ids; decoding is greedy and ignores end-of-text.

    KV starts empty.
    """

    def describe(self) -> dict[str, Any]: ...

    def generate(self, prompt: list[int], num_tokens: int) -> Generation: ...

    def decode_batch(self, prompts: list[list[int]], num_tokens: int) -> BatchDecode: ...


def serve(contestant: Contestant, load_s: float) -> None:
    """Answer commands until stdin closes. Anything a library prints to stdout goes to stderr instead."""
    wire = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": True, "load_s": load_s, **contestant.describe()}), file=wire)
    for line in sys.stdin:
        command = json.loads(line)
        operation = command.pop("op")
        if operation == "memory":
            answer: dict[str, Any] = {"peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        elif operation == "generate":
            answer = asdict(contestant.generate(**command))
        elif operation == "decode_batch":
            answer = asdict(contestant.decode_batch(**command))
        else:
            answer = {"error": f"unknown operation {operation!r}"}
        print(json.dumps(answer), file=wire)
