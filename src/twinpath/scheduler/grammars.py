"""Requests that wait for their grammar: the compiler's thread says when it is there, the loop takes them in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twinpath.contracts import Constraint, Constraints
from twinpath.errors import InvalidRequest, RequestError
from twinpath.ipc.messages import GrammarGauges
from twinpath.scheduler.scheduler import Scheduler
from twinpath.types import ErrorEvent, Event, FinishEvent, FinishReason, Request, Usage


class ConstraintsOnDemand:
    """Implements `contracts.Constraints` by those that `make` returns for the first request that wants one. All wait
    for that, so it is for engines that start more often than they constrain: scripted ones."""

    def __init__(self, make: Callable[[], Constraints]) -> None:
        self._make = make
        self._made: Constraints | None = None

    @property
    def num_compiled(self) -> int:
        return self._made.num_compiled if self._made else 0

    @property
    def num_hits(self) -> int:
        return self._made.num_hits if self._made else 0

    @property
    def num_failed(self) -> int:
        return self._made.num_failed if self._made else 0

    def prepare(self, request: Request, done: Callable[[Constraint | RequestError], None]) -> None:
        self._made = self._made or self._make()
        self._made.prepare(request, done)


class NoConstraints:
    """Implements `contracts.Constraints` where there can be none: each request that wants one is told why."""

    num_compiled = num_hits = 0

    def __init__(self, reason: str) -> None:
        self.num_failed = 0
        self.reason = reason
        self._error = RequestError(f"Grammars cannot be used: {reason}", status=500)

    def prepare(self, request: Request, done: Callable[[Constraint | RequestError], None]) -> None:
        self.num_failed += 1
        done(self._error)


class GrammarQueue:
    """All methods are the loop's. `wake` is called from the compiler's thread when `ready` has something to give and
    the loop waits for messages."""

    def __init__(self, scheduler: Scheduler, constraints: Constraints | None, wake: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._constraints = constraints
        self._wake = wake
        #: Set by the loop before it looks at `has_ready` and waits.
        self.is_resting = False
        #: Their grammars are being compiled.
        self._waiting: dict[str, Request] = {}
        self._done: deque[tuple[Request, Constraint | RequestError]] = deque()

    def add(self, request: Request) -> list[Event]:
        """A request goes on to the scheduler, now or once its grammar is there."""
        if request.grammar is None:
            return self._scheduler.add(request)
        if self._constraints is None:
            return [_error(request, InvalidRequest("This engine cannot constrain its answers."))]
        if request.request_id in self._waiting:
            return []
        self._waiting[request.request_id] = request

        def done(outcome: Constraint | RequestError) -> None:
            self._done.append((request, outcome))
            if self.is_resting:  # Else the loop looks soon by itself.
                self._wake()

        self._constraints.prepare(request, done)
        return self.ready()

    @property
    def has_ready(self) -> bool:
        """A wait that was woken need not be over: this says whether it was for a grammar."""
        return bool(self._done)

    def ready(self) -> list[Event]:
        """Take in those whose grammar has come."""
        events: list[Event] = []
        while self._done:
            request, outcome = self._done.popleft()
            if self._waiting.get(request.request_id) is not request:
                continue  # Cancelled.
            del self._waiting[request.request_id]
            if isinstance(outcome, RequestError):
                events.append(_error(request, outcome))
            else:
                events += self._scheduler.add(request, outcome)
        return events

    def cancel(self, request_id: str) -> list[Event]:
        request = self._waiting.pop(request_id, None)
        if request is None:
            return self._scheduler.cancel(request_id)
        usage = Usage(prompt_tokens=len(request.prompt_ids), completion_tokens=0)
        return [FinishEvent(request_id, FinishReason.ABORT, usage)]

    def gauges(self) -> GrammarGauges:
        constraints, num_closed_out = self._constraints, self._scheduler.num_closed_out
        if constraints is None:
            return GrammarGauges()
        return GrammarGauges(constraints.num_compiled, constraints.num_hits, constraints.num_failed, num_closed_out)


def _error(request: Request, error: RequestError) -> ErrorEvent:
    return ErrorEvent(request.request_id, error.message, error.code or "invalid_grammar", error.status)
