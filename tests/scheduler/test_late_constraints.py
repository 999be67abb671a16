"""Constraints that are made when somebody wants them, or when nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event

from scheduler.stepping import make_request
from scheduler.test_constraint import Letters
from twinpath.contracts import Constraint
from twinpath.errors import RequestError
from twinpath.scheduler import LateConstraints
from twinpath.types import Request

TIMEOUT_S = 10


class Named(Letters):
    """One that says whose it is."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Ready:
    """Constraints that answer at once."""

    def __init__(self) -> None:
        self.num_compiled, self.num_hits, self.num_failed = 5, 7, 1

    def warm_up(self) -> None: ...

    def prepare(self, request: Request, done: Callable[[Constraint | RequestError], None]) -> None:
        done(Named(request.request_id))


class Maker:
    """Makes them when told to."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.num_calls = 0
        self.go_on = Event()
        self.outcomes: SimpleQueue[Constraint | RequestError] = SimpleQueue()
        self._failure = failure

    def __call__(self) -> Ready:
        self.num_calls += 1
        assert self.go_on.wait(TIMEOUT_S)
        if self._failure is not None:
            raise self._failure
        return Ready()

    def outcome(self) -> Constraint | RequestError:
        return self.outcomes.get(timeout=TIMEOUT_S)

    def name(self) -> str:
        found = self.outcome()
        assert isinstance(found, Named)
        return found.name


def test_requests_wait_until_they_are_made_once() -> None:
    maker = Maker()
    late = LateConstraints(maker)
    assert maker.num_calls == 0 and (late.num_compiled, late.num_hits, late.num_failed) == (0, 0, 0)
    for name in "ab":
        late.prepare(make_request(name, "prompt"), maker.outcomes.put)
    assert maker.outcomes.empty()
    maker.go_on.set()
    assert [maker.name() for _ in "ab"] == ["a", "b"]
    late.prepare(make_request("c", "prompt"), maker.outcomes.put)
    assert maker.name() == "c"
    late.warm_up()
    assert maker.num_calls == 1 and (late.num_compiled, late.num_hits, late.num_failed) == (5, 7, 1)


def test_they_are_made_ahead_when_nobody_waits() -> None:
    maker = Maker()
    late = LateConstraints(maker)
    maker.go_on.set()
    late.warm_up()
    late.warm_up()
    late.prepare(make_request("a", "prompt"), maker.outcomes.put)
    assert maker.name() == "a" and maker.num_calls == 1


def test_requests_are_told_when_they_cannot_be_made() -> None:
    maker = Maker(OSError("the file is gone"))
    late = LateConstraints(maker)
    late.prepare(make_request("a", "prompt"), maker.outcomes.put)
    maker.go_on.set()
    late_error = maker.outcome()
    assert isinstance(late_error, RequestError) and late_error.status == 500
    assert "OSError: the file is gone" in late_error.message
    late.prepare(make_request("b", "prompt"), maker.outcomes.put)
    assert maker.outcomes.get_nowait() is late_error
