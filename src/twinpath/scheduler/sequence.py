"""One request as the scheduler sees it: its tokens, its pages, and how far it is planned, computed and told."""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING

import numpy as np

from twinpath.contracts import Constraint
from twinpath.kv import PrefixKeys, Session, Template
from twinpath.types import Int32s, Promise, Request, TokenLogprob, Usage

if TYPE_CHECKING:
    from twinpath.scheduler.chunk import Chunk


#: A sequence with at most this many rows to run is about to sample: it is served like a decode row.
SHORT_ROWS = 8
#: Least room for tokens to come.
_ROOM_TOKENS = 64


class Lane(StrEnum):
    """A latency contract: FAST prefills are short and go first, FLEX fills what they leave."""

    FAST = "fast"
    FLEX = "flex"


class Phase(Enum):
    """WAITING -> RUNNING -> DONE; back to WAITING by PREEMPTING, while plans that touch it are outstanding."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTING = auto()
    DONE = auto()


class Sequence:
    """Tokens of one request and four counters over them.

    Invariant: num_computed <= num_planned; num_computed <= num_known; num_planned <= num_known + num_pending.
        Positions [0, num_computed) have their KV written in all layers; [num_computed, num_planned) are in outstanding
        plans or in `chunk`, which has passed some layers; `num_pending` tokens after the known ones are being sampled
        by outstanding plans.
    """

    __slots__ = (
        "arrival_s",
        "cached_tokens",
        "chunk",
        "constraint",
        "in_flight",
        "is_complete",
        "keys",
        "lane",
        "max_outputs",
        "needs_init",
        "num_bound_pages",
        "num_computed",
        "num_drawn_pages",
        "num_inserted_pages",
        "num_known",
        "num_pending",
        "num_planned",
        "num_prompt",
        "num_uncached",
        "order",
        "pages",
        "phase",
        "prefill_ms",
        "priority",
        "promise",
        "prompt_logprobs",
        "request_id",
        "salt",
        "sampling",
        "session",
        "slot",
        "started",
        "stop_ids",
        "template",
        "tokens",
        "tpot_target_ms",
        "ttft_target_ms",
        "waited_s",
        "weight",
    )

    def __init__(
        self,
        request: Request,
        order: int,
        max_outputs: int,
        keys: PrefixKeys,
        constraint: Constraint | None = None,
    ) -> None:
        self.request_id = request.request_id
        self.sampling = request.sampling
        #: Follows the known output tokens.
        self.constraint = constraint
        #: Arrival number: first come, first served, and the youngest is preempted first.
        self.order = order
        self.max_outputs = max_outputs
        self.stop_ids = frozenset(request.sampling.stop_token_ids)
        self.num_prompt = self.num_known = len(request.prompt_ids)
        #: Known ones, and room for more.
        self.tokens: Int32s = np.empty(self.num_prompt + min(max(max_outputs, 0), _ROOM_TOKENS), np.int32)
        self.tokens[: self.num_prompt] = request.prompt_ids
        self.num_planned = self.num_computed = self.num_pending = 0
        self.in_flight = 0
        self.phase = Phase.WAITING
        self.slot = -1
        self.pages: list[int] = []
        self.needs_init = True
        self.keys = keys
        self.salt = request.cache_salt
        #: Of its pages: found cached when it was admitted, allocated for it since, and offered as prefixes.
        self.num_bound_pages = self.num_drawn_pages = self.num_inserted_pages = 0
        self.cached_tokens = 0
        #: Whose turn it is, and the template that its pages are to become.
        self.session: Session | None = None
        self.template: Template | None = None
        #: It ended as asked: what it said belongs to the context.
        self.is_complete = False
        #: A first event went out.
        self.started = False
        #: Collected until the first event; None: not asked for, or told already.
        self.prompt_logprobs: list[TokenLogprob] | None = None if request.sampling.prompt_logprobs is None else []
        #: Its prefill on the way through the layers; nothing else of the sequence can be planned meanwhile.
        self.chunk: Chunk | None = None
        #: Seconds of the scheduler's clock.
        self.arrival_s = request.arrival_s
        self.ttft_target_ms, self.tpot_target_ms = request.ttft_target_ms, request.tpot_target_ms
        self.weight, self.priority = request.weight, request.priority
        #: As they were at arrival: tokens to compute, the lane that follows from them, predicted time of that prefill.
        self.num_uncached = self.num_prompt
        self.lane = Lane.FAST
        self.prefill_ms = 0.0
        self.promise: Promise | None = None
        #: From arrival until the first row of its prefill was planned; None: not yet.
        self.waited_s: float | None = None

    @property
    def num_outputs(self) -> int:
        return self.num_known - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Known tokens that no plan covers yet."""
        return self.num_known - self.num_planned

    @property
    def num_plannable(self) -> int:
        """Rows the next plan may hold: the remaining ones, or one for a token still being sampled."""
        if self.chunk is not None:
            return 0
        remaining = self.num_known - self.num_planned
        if remaining > 0:
            return remaining
        if self.constraint is not None:
            return 0  # What may come after a token that is not known yet is not known either.
        return 1 if self.num_pending and self.num_outputs + self.num_pending < self.max_outputs else 0

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt, completion_tokens=self.num_outputs, cached_tokens=self.cached_tokens
        )

    def goes_on_after(self, new_tokens: list[int]) -> bool:
        """Whether these sampled tokens follow others, of which nothing more was asked, and do not end the request."""
        return (
            self.started
            and self.constraint is None
            and self.num_known - self.num_prompt + len(new_tokens) < self.max_outputs
            and self.stop_ids.isdisjoint(new_tokens)
        )

    def append(self, new_tokens: list[int]) -> None:
        begin, num_new = self.num_known, len(new_tokens)
        end = self.num_known = begin + num_new
        if end > len(self.tokens):
            grown = np.empty(max(2 * len(self.tokens), end + _ROOM_TOKENS), np.int32)
            grown[:begin] = self.tokens[:begin]
            self.tokens = grown
        if num_new == 1:
            self.tokens[begin] = new_tokens[0]
        else:
            self.tokens[begin:end] = new_tokens

    def history(self) -> Int32s:
        """A copy of the known tokens, for the engine to keep."""
        return self.tokens[: self.num_known].copy()

    def step_back(self) -> None:
        """The token sampled last does not count: the last known position runs again, after a fresh slot init."""
        self.num_computed = self.num_planned = self.num_known - 1
        self.needs_init = True

    def roll_back(self) -> None:
        """Forget outstanding plans: what they were to compute is planned again, after a fresh slot init."""
        self.num_planned = self.num_computed
        self.num_pending = 0
        self.needs_init = True
        self.chunk = None

    def start_over(self) -> None:
        """Pages and slot are gone; everything known is computed again on resume."""
        self.roll_back()
        self.phase = Phase.WAITING
        self.num_planned = self.num_computed = self.num_inserted_pages = 0
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = []

    def check_integrity(self) -> None:
        """Raise AssertionError when the counters contradict each other."""
        assert 0 <= self.num_computed <= self.num_planned <= self.num_known + self.num_pending, self.request_id
        assert self.num_computed <= self.num_known and self.num_outputs + self.num_pending <= max(self.max_outputs, 0)
        assert self.num_inserted_pages <= len(self.pages)
        assert (self.slot >= 0) == (bool(self.pages) or self.in_flight > 0 or self.phase is Phase.RUNNING)
