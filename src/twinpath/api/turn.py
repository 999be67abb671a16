"""One generation as text: events in, pieces of text out. Streams and whole answers take one path, so they agree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

from twinpath.api.ports import Detokenizer
from twinpath.errors import EngineError
from twinpath.telemetry.tally import Tally
from twinpath.text import StopMatcher, StopSet
from twinpath.types import ErrorEvent, Event, FinishEvent, FinishReason, Request, TokenLogprob, TokensEvent, Usage


@dataclass(slots=True)
class Piece:
    """What one event added: text that is safe to send, and the tokens counted with it."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None


#: What clients hear; the engine's third reason, abort, is an error by then.
Finish = Literal["stop", "length"]
Emit = Callable[[Piece], Awaitable[None]]


@dataclass(slots=True)
class TurnStats:
    """Counts and moments (monotonic seconds) of one generation."""

    num_prompt: int
    num_output: int = 0
    num_cached: int = 0
    first_token_at: float | None = None
    last_token_at: float | None = None
    #: Seconds between tokens; those that came in one event share its gap evenly.
    token_gaps: Tally = field(default_factory=Tally)

    def count(self, num_tokens: int, now: float) -> None:
        if self.last_token_at is None:
            self.first_token_at = now
        else:
            self.token_gaps.add((now - self.last_token_at) / num_tokens, num_tokens)
        self.last_token_at = now
        self.num_output += num_tokens

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.num_prompt, completion_tokens=self.num_output, cached_tokens=self.num_cached)


class Turn:
    """Runs one request and turns its tokens into text. Stop strings live here: a match cancels the engine's work.

    `finish_reason` is set when `run` returns.
    """

    def __init__(self, request: Request, detokenizer: Detokenizer, stops: StopSet) -> None:
        self.request = request
        self.stats = TurnStats(num_prompt=len(request.prompt_ids))
        self.finish_reason: Finish = "stop"
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops) if stops.has_stops else None
        self._end_ids = frozenset(request.sampling.stop_token_ids)
        self._min_tokens = request.sampling.min_tokens

    async def run(self, events: AsyncIterator[Event], emit: Emit) -> None:
        """Feed every event through; `emit` gets a piece per event that has something to say.

        Raises: EngineError when the engine gave up on the request; RequestError when it was refused.
        """
        async with aclosing(events) as stream:  # type: ignore[type-var]
            async for event in stream:
                if isinstance(event, TokensEvent):
                    piece, stopped = self._feed(event)
                    await emit(piece)
                    if stopped:
                        return
                elif isinstance(event, FinishEvent):
                    if event.reason is FinishReason.ABORT:
                        raise EngineError("The server cancelled this request.", code="cancelled", status=503)
                    self.finish_reason = "length" if event.reason is FinishReason.LENGTH else "stop"
                    self.stats.num_cached = max(self.stats.num_cached, event.usage.cached_tokens)
                    if tail := self._tail():
                        await emit(Piece(tail, []))
                    return
                elif isinstance(event, ErrorEvent):
                    raise EngineError(event.message, code=event.code, status=event.status)
        raise EngineError("The engine ended this request without a result.")

    def _feed(self, event: TokensEvent) -> tuple[Piece, bool]:
        """Token by token where a stop string may cut inside the event, so that usage counts up to the match."""
        token_ids, logprobs = event.token_ids, event.logprobs
        if event.cached_tokens:
            self.stats.num_cached = event.cached_tokens
        text, num_used, stopped = "", len(token_ids), False
        if self._stops is None:
            text = self._detokenizer.push([t for t in token_ids if t not in self._end_ids])
        else:
            for position, token_id in enumerate(token_ids, 1):
                text += self._match(token_id, self.stats.num_output + position)
                if self._stops.matched is not None:
                    num_used, stopped = position, True
                    break
        if num_used:
            self.stats.count(num_used, monotonic())
        if stopped:
            token_ids = token_ids[:num_used]
            logprobs = None if logprobs is None else logprobs[:num_used]
        return Piece(text, token_ids, logprobs, event.prompt_logprobs), stopped

    def _match(self, token_id: int, num_output: int) -> str:
        assert self._stops is not None
        if token_id in self._end_ids:
            return ""
        text = self._detokenizer.push([token_id])
        # Before `min_tokens` a stop string is plain text.
        return text if num_output < self._min_tokens else self._stops.push(text)

    def _tail(self) -> str:
        """Text still held back when the request ended by itself."""
        tail = self._detokenizer.finish()
        if self._stops is None:
            return tail
        return self._stops.push(tail) + self._stops.finish() if tail else self._stops.finish()
