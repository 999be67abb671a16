"""The seams between rooms, as Protocols. Every fast thing behind one of them has a plain twin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from twinpath.types import EngineInfo, Event, Request, StepPlan, StepResult


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

    def close(self) -> None: ...


class Generate(Protocol):
    """Request -> events, the one callable shape at api, gateway, replica and fake.

    Closing the iterator (`aclose`) before its terminal event cancels the request.
    """

    def __call__(self, request: Request) -> AsyncIterator[Event]: ...
