"""One generation as text: events in, pieces of text out. Streams and whole answers take one path, so they agree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from time import monotonic
from typing import Literal

from twinpath.api.client_watch import AFTER_SUBMIT_S
from twinpath.api.deadlines import NO_SERVICE, Service
from twinpath.api.responses import TimedUsage, Timing
from twinpath.api.transcript import Transcript
from twinpath.contracts import AnswerComplete
from twinpath.errors import EngineError, InvalidRequest, Overloaded, RequestError
from twinpath.telemetry.tally import Tally
from twinpath.text.answer import Part
from twinpath.types import (
    AdmittedEvent,
    ErrorEvent,
    Event,
    FinishEvent,
    FinishReason,
    Promise,
    Request,
    TokenLogprob,
    TokensEvent,
)


@dataclass(slots=True)
class Piece:
    """What one event added: text that is safe to send, and the tokens counted with it."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    #: The text again, as what it means: content, reasoning, calls. What one event adds may come with a later one.
    parts: list[Part] = field(default_factory=list)


#: What clients hear; the engine's third reason, abort, is an error by then.
Finish = Literal["stop", "length", "tool_calls"]
Emit = Callable[[Piece], Awaitable[None]]


@dataclass(slots=True)
class TurnStats:
    """Counts and moments (monotonic seconds) of one generation."""

    num_prompt: int
    #: When the body's last byte was in.
    arrived_at: float = 0.0
    #: Another generation of the call has the same prompt, and counts it.
    shares_prompt: bool = False
    num_output: int = 0
    num_cached: int = 0
    num_reasoning: int = 0
    first_token_at: float | None = None
    last_token_at: float | None = None
    #: Seconds between tokens; those that came in one event share its gap evenly.
    token_gaps: Tally = field(default_factory=Tally)
    service: Service = NO_SERVICE
    #: Known from the first event on, when the engine promises anything.
    promise: Promise | None = None
    #: From the request's arrival until its prefill began.
    waited_ms: float = 0.0
    #: Spent handing pieces to the client: much only when it reads too slowly.
    stalled_s: float = 0.0

    def count(self, num_tokens: int, now: float) -> None:
        if self.last_token_at is None:
            self.first_token_at = now
        else:
            self.token_gaps.add((now - self.last_token_at) / num_tokens, num_tokens)
        self.last_token_at = now
        self.num_output += num_tokens

    @property
    def usage(self) -> TimedUsage:
        return TimedUsage(
            prompt_tokens=0 if self.shares_prompt else self.num_prompt,
            completion_tokens=self.num_output,
            cached_tokens=0 if self.shares_prompt else self.num_cached,
            reasoning_tokens=self.num_reasoning,
            timing=self._timing(),
        )

    def _timing(self) -> Timing:
        promise, first_at = self.promise, self.first_token_at
        predicted_ms = None if promise is None else promise.predicted_ttft_ms
        return Timing(
            lane=None if promise is None else promise.lane,
            slo_class=self.service.class_name or None,
            predicted_ttft_ms=None if predicted_ms is None else round(predicted_ms, 3),
            ttft_ms=None if first_at is None else round((first_at - self.arrived_at) * 1e3, 3),
        )


class Turn:
    """Runs one request and turns its tokens into text and parts. What ends the transcript cancels the engine's work.

    `finish_reason` is set when `run` returns.
    """

    def __init__(
        self,
        request: Request,
        new_transcript: Callable[[], Transcript],
        service: Service | None = None,
        grammar_field: str = "",
    ) -> None:
        """`grammar_field`: of the body, which asks for the request's grammar."""
        self.request = request
        self._grammar_field = grammar_field
        self.stats = TurnStats(
            num_prompt=len(request.prompt_ids),
            arrived_at=request.arrival_s,
            shares_prompt=bool(request.follows),
            service=service or NO_SERVICE,
        )
        self.finish_reason: Finish = "stop"
        self._new_transcript = new_transcript

    @cached_property
    def _transcript(self) -> Transcript:
        return self._new_transcript()

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._transcript.matched_stop

    async def run(self, events: AsyncIterator[Event], emit: Emit) -> None:
        """Feed every event through; `emit` gets a piece per event that has something to say.

        Raises: EngineError when the engine gave up on the request; RequestError when it was refused.
        """
        # Not at once: an engine that was woken by this task may have to wait for its core.
        asyncio.get_running_loop().call_later(AFTER_SUBMIT_S, lambda: self._transcript)
        try:
            async for event in events:
                if isinstance(event, TokensEvent):
                    if event.promise is not None or event.waited_ms:
                        self.stats.promise, self.stats.waited_ms = event.promise, event.waited_ms
                    piece, stopped = self._feed(event)
                    began = monotonic()
                    await emit(piece)
                    self.stats.stalled_s += monotonic() - began
                    if stopped:
                        await _say_complete(events)
                        return
                elif isinstance(event, FinishEvent):
                    if event.reason is FinishReason.ABORT:
                        raise EngineError("The server cancelled this request.", code="cancelled", status=503)
                    self.stats.num_cached = max(self.stats.num_cached, event.usage.cached_tokens)
                    is_cut = event.reason is FinishReason.LENGTH
                    tail = self._transcript.finish(cut=is_cut)
                    self._conclude("length" if is_cut else "stop")
                    if tail.parts:
                        await emit(Piece(tail.text, [], parts=tail.parts))
                    return
                elif isinstance(event, ErrorEvent):
                    raise _error_of(event, self._grammar_field)
                elif isinstance(event, AdmittedEvent):
                    self.stats.promise = event.promise
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        raise EngineError("The engine ended this request without a result.")

    def _feed(self, event: TokensEvent) -> tuple[Piece, bool]:
        """Usage counts up to the token that ended the answer, be it in the middle of the event."""
        token_ids, logprobs = event.token_ids, event.logprobs
        if event.cached_tokens:
            self.stats.num_cached = event.cached_tokens
        passage = self._transcript.add(token_ids, self.stats.num_output)
        if passage.num_used:
            self.stats.count(passage.num_used, monotonic())
        self.stats.num_reasoning = self._transcript.num_reasoning
        if passage.ended:
            token_ids = token_ids[: passage.num_used]
            logprobs = None if logprobs is None else logprobs[: passage.num_used]
            self._conclude("stop")
        return Piece(passage.text, token_ids, logprobs, event.prompt_logprobs, passage.parts), passage.ended

    def _conclude(self, reason: Finish) -> None:
        """An answer that was cut by its limit says so, whatever is in it."""
        self.finish_reason = "tool_calls" if reason == "stop" and self._transcript.num_calls else reason


async def _say_complete(events: AsyncIterator[Event]) -> None:
    """Leave with a whole answer, which is no cancellation: its session keeps it."""
    if isinstance(events, AsyncGenerator):
        with suppress(StopAsyncIteration, AnswerComplete):
            await events.athrow(AnswerComplete())


def _error_of(event: ErrorEvent, grammar_field: str) -> RequestError:
    if event.status == InvalidRequest.status:  # A grammar that turned out too complex: the request's fault.
        param = grammar_field if event.code in ("grammar_error", "invalid_grammar") else None
        return InvalidRequest(event.message, param=param, code=event.code)
    if event.status != Overloaded.status:
        return EngineError(event.message, code=event.code, status=event.status)
    retry_after_s = None if event.retry_after_s is None else ceil(event.retry_after_s)
    return Overloaded(event.message, code=event.code, retry_after_s=retry_after_s)
