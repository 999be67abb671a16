"""The events of one request on their way from the engine's link to one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from twinpath.contracts import AnswerComplete
from twinpath.types import AdmittedEvent, Event, Request, TokensEvent


class GenerationOwner(Protocol):
    """Who has the request run."""

    async def begin(self, generation: Generation) -> None:
        """Called once, before the first event. May refuse by raising."""
        ...

    def leave(self, generation: Generation) -> None:
        """The reader wants no more; idempotent, and nothing when the request has ended."""
        ...


class Generation(AsyncGenerator[Event, None]):
    """What `Generate` returns. A class and not a generator function: asyncio keeps a register of those, and each is one
    frame more to wake for every token.

    Invariant: events end with exactly one FinishEvent or ErrorEvent, unless the reader leaves before.
    """

    def __init__(self, request: Request, owner: GenerationOwner) -> None:
        self.request = request
        self._owner = owner
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._has_begun = False
        self._is_over = False
        #: Until the first token, and so the KV of its prompt, is there; or will never be.
        self.followers: list[asyncio.Future[None]] = []
        #: The engine has heard of it.
        self.submitted = False
        #: The first token came.
        self.started = False
        #: The terminal event came, or the reader left.
        self.ended = False
        #: The reader left because it has all it wanted.
        self.complete = False

    def push(self, event: Event) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def prefilled(self) -> None:
        """Until the request has its first token, and so its prompt's KV is there; or has ended without."""
        if not (self.started or self.ended):
            follower = asyncio.get_running_loop().create_future()
            self.followers.append(follower)
            await follower

    def release_followers(self) -> None:
        for follower in self.followers:
            if not follower.done():
                follower.set_result(None)
        self.followers.clear()

    async def __anext__(self) -> Event:
        if self._is_over:
            raise StopAsyncIteration
        try:
            if not self._has_begun:
                self._has_begun = True
                await self._owner.begin(self)
            if not self._events:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        except BaseException:
            self._leave()
            raise
        event = self._events.popleft()
        if not isinstance(event, TokensEvent | AdmittedEvent):
            self._is_over = True
        return event

    async def asend(self, value: None) -> Event:
        return await self.__anext__()

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> Event:
        """Ends it; thrown `AnswerComplete`, it ends well."""
        self.complete = isinstance(typ, AnswerComplete)
        self._leave()
        if self.complete:
            raise StopAsyncIteration
        raise typ

    async def aclose(self) -> None:
        self._leave()

    def _leave(self) -> None:
        self._is_over = True
        self._owner.leave(self)
