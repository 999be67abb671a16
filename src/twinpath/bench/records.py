"""What is known of one request after it ended, whatever its end was."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from twinpath.bench.sse import Promise


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request seen from the client.

    Units: times are seconds of the run's clock. `intended_s` is when the request should have been sent; latencies
    that users feel are counted from it, so a client or server that falls behind cannot hide the wait (no coordinated
    omission).
    """

    index: int
    intended_s: float
    sent_s: float | None = None
    #: First and last moment at which generated text arrived.
    first_token_s: float | None = None
    last_token_s: float | None = None
    #: The response's last byte, or the failure.
    done_s: float | None = None
    #: Arrival of every piece of the answer that carried text, in order; pieces of one socket read share a stamp.
    piece_s: list[float] = []
    status: int = 0
    #: Empty when the request ended as it should; otherwise what went wrong.
    error: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    #: Of a server that makes one.
    promise: Promise | None = None
    #: The answer; filled only when the client keeps answers.
    text: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and self.done_s is not None

    @property
    def ttft_ms(self) -> float | None:
        """Intended time to first text."""
        return None if self.first_token_s is None else (self.first_token_s - self.intended_s) * 1e3

    @property
    def send_lag_ms(self) -> float | None:
        """How late the client itself was."""
        return None if self.sent_s is None else (self.sent_s - self.intended_s) * 1e3

    @property
    def latency_ms(self) -> float | None:
        """Intended time to the end of the response."""
        return None if self.done_s is None else (self.done_s - self.intended_s) * 1e3

    @property
    def token_ms(self) -> float | None:
        """Mean milliseconds per token after the first; from usage, so it holds when a piece carries several tokens."""
        if self.first_token_s is None or self.last_token_s is None or self.completion_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) * 1e3 / (self.completion_tokens - 1)

    def gaps_ms(self) -> list[float]:
        """Milliseconds between consecutive pieces: what a reader of the stream sees."""
        return [(b - a) * 1e3 for a, b in pairwise(self.piece_s)]
