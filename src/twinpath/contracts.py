"""The seams between rooms, as Protocols. Every fast thing behind one of them has a plain twin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from twinpath.errors import RequestError
from twinpath.types import EngineInfo, Event, Int32s, Request, StepPlan, StepResult


class Clock(Protocol):
    """Monotonic seconds. The scheduler reads no other clock, so it runs unchanged in simulated time."""

    def __call__(self) -> float: ...


class Engine(Protocol):
    """Runs step plans. Up to `info.depth` plans are outstanding; results come back in submission order.

    `submit` and `poll` are called from one thread; `interrupt` and `progress` from any thread.
    """

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, plan: StepPlan) -> int:
        """Hand over a plan and return its step_id. The plan's arrays belong to the engine until its result."""
        ...

    def poll(self, timeout_s: float | None = None) -> StepResult | None:
        """Next result, waiting up to `timeout_s` (None: until it is there); None when none is ready or outstanding."""
        ...

    def interrupt(self, step_id: int) -> None:
        """Stop a running or waiting plan at the next layer; its result says `interrupted`. Late calls do nothing."""
        ...

    def progress(self) -> int:
        """A counter that grows while the engine works (layers done): what tells a long prefill from a hang."""
        ...

    def prepare(self) -> bool:
        """Called while nothing is planned: make coming steps cheaper, for about a millisecond. Whether there is more to
        do."""
        ...

    def close(self) -> None: ...


class Constraint(Protocol):
    """Follows one request's output through its grammar. Moves forward by committed tokens, back by none.

    `num_left`: output tokens that may still come.
    """

    #: Why the request cannot go on, once it cannot.
    error: str | None

    def fill(self, words: Int32s, num_left: int) -> None:
        """Which tokens may come next, into int32 [ceil(vocab / 32)] as `TokenMasks` has it; none after an error."""
        ...

    def allows(self, token: int, num_left: int) -> bool:
        """Whether the mask of this place has `token`. False when that is not known without making it."""
        ...

    def accept(self, token: int, num_left: int) -> bool:
        """Take the next token; `num_left` counts those after it. False: the answer could not be completed any more in
        the tokens left, so this one does not count and its position is to be sampled again."""
        ...

    def take_forced(self, most: int, num_left: int) -> list[int]:
        """Take what has to come next, where the masks would leave one token each: at most so many."""
        ...

    @property
    def finished(self) -> bool:
        """The answer is complete and nothing can follow it."""
        ...

    @property
    def closed_out(self) -> bool:
        """The last tokens were forced, to complete the answer in the tokens left."""
        ...


class Constraints(Protocol):
    """Grammars -> constraints, where compiling may take a while."""

    @property
    def num_compiled(self) -> int: ...

    @property
    def num_hits(self) -> int: ...

    @property
    def num_failed(self) -> int: ...

    def prepare(self, request: Request, done: Callable[[Constraint | RequestError], None]) -> None:
        """Call `done` once, with what follows the request's grammar or why nothing can: at once, or from a thread of
        its own when the grammar has to be compiled first."""
        ...


class AnswerComplete(Exception):
    """Thrown into a `Generate` iterator: its reader has all it wants (a stop string came, a call is whole). The request
    ends as when it is closed, but what it said belongs to its conversation."""


class Generate(Protocol):
    """Request -> events, the one callable shape at api, gateway, replica and fake.

    Closing the iterator (`aclose`) before its terminal event cancels the request; so does `AnswerComplete`.
    """

    def __call__(self, request: Request) -> AsyncIterator[Event]: ...
