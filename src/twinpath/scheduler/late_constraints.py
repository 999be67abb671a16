"""Constraints that are made after the engine is ready: their tables take as long to build as the model to load."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread

from twinpath.contracts import Constraint, Constraints
from twinpath.errors import RequestError
from twinpath.types import Request

Done = Callable[[Constraint | RequestError], None]


class LateConstraints:
    """Implements `contracts.Constraints` over those that `make` returns. It is called once, in a thread of its own: by
    `warm_up`, else for the first request, which waits for it as for its grammar."""

    def __init__(self, make: Callable[[], Constraints]) -> None:
        self._make = make
        self._made: Constraints | None = None
        self._failure: RequestError | None = None
        self._waiting: list[tuple[Request, Done]] = []
        self._lock = Lock()
        self._is_begun = False

    @property
    def num_compiled(self) -> int:
        return self._made.num_compiled if self._made else 0

    @property
    def num_hits(self) -> int:
        return self._made.num_hits if self._made else 0

    @property
    def num_failed(self) -> int:
        return self._made.num_failed if self._made else 0

    def warm_up(self) -> None:
        with self._lock:
            if self._is_begun:
                return
            self._is_begun = True
        Thread(target=self._run, name="constraints", daemon=True).start()

    def prepare(self, request: Request, done: Done) -> None:
        self.warm_up()
        with self._lock:
            if self._made is None and self._failure is None:
                self._waiting.append((request, done))
                return
        self._pass_on(request, done)

    def _run(self) -> None:
        made, failure = None, None
        try:
            made = self._make()
        except Exception as error:  # Those who wait are told.
            failure = RequestError(f"Grammars cannot be used: {type(error).__name__}: {error}", status=500)
        with self._lock:
            self._made, self._failure = made, failure
            waiting, self._waiting = self._waiting, []
        for request, done in waiting:
            self._pass_on(request, done)

    def _pass_on(self, request: Request, done: Done) -> None:
        if self._made is not None:
            self._made.prepare(request, done)
        elif self._failure is not None:
            done(self._failure)
