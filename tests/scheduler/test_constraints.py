"""Constraints that are made when somebody wants them, and none at all."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.stepping import make_request
from scheduler.test_constraint import Letters
from twinpath.contracts import Constraint
from twinpath.errors import RequestError
from twinpath.scheduler import ConstraintsOnDemand, NoConstraints
from twinpath.types import Request


class Ready:
    """Constraints that answer at once."""

    num_compiled, num_hits, num_failed = 5, 7, 1

    def prepare(self, request: Request, done: Callable[[Constraint | RequestError], None]) -> None:
        done(Letters(request.request_id))


def test_they_are_made_once_for_the_first_request() -> None:
    made: list[Ready] = []

    def make() -> Ready:
        made.append(Ready())
        return made[-1]

    on_demand, outcomes = ConstraintsOnDemand(make), list[Constraint | RequestError]()
    assert not made and (on_demand.num_compiled, on_demand.num_hits, on_demand.num_failed) == (0, 0, 0)
    for name in "ab":
        on_demand.prepare(make_request(name, "prompt"), outcomes.append)
    assert len(made) == 1 and len(outcomes) == 2 and all(isinstance(outcome, Letters) for outcome in outcomes)
    assert (on_demand.num_compiled, on_demand.num_hits, on_demand.num_failed) == (5, 7, 1)


def test_where_there_are_none_each_request_is_told_why() -> None:
    none, outcomes = NoConstraints("OSError: the file is gone"), list[Constraint | RequestError]()
    for name in "ab":
        none.prepare(make_request(name, "prompt"), outcomes.append)
    assert none.num_failed == len(outcomes) == 2
    for outcome in outcomes:
        assert isinstance(outcome, RequestError) and outcome.status == 500
        assert "OSError: the file is gone" in outcome.message
