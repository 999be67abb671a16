"""Constrained rows in the scheduler: when they are planned, what a refused token does, how their requests end."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.stepping import Bench, make_request
from twinpath.engine.scripted import END_ID, Script
from twinpath.types import ErrorEvent, FinishReason, Int32s, Request


class Letters:
    """Allows one of `plan[i]` at output i; refuses the tokens in `refused`, once each, and then allows the others."""

    def __init__(
        self,
        *plan: str,
        refused: str = "",
        cut_at: int | None = None,
        error_at: int | None = None,
        forces: bool = False,
    ) -> None:
        self.error: str | None = None
        self.closed_out = False
        self.num_left: list[int] = []
        self._plan = list(plan)
        self._refused = set(refused)
        self._cut_at, self._error_at = cut_at, error_at
        self._said = ""
        self._forces = forces

    @property
    def finished(self) -> bool:
        return self.closed_out or len(self._said) == len(self._plan)

    def fill(self, words: Int32s, num_left: int) -> None:
        self.num_left.append(num_left)
        words[:] = 0
        if len(self._said) == self._error_at:
            raise ValueError("too hard")
        for letter in self._plan[len(self._said)]:
            words.view(np.uint32)[ord(letter) >> 5] |= np.uint32(1 << (ord(letter) & 31))

    def allows(self, token: int, num_left: int) -> bool:
        return chr(token) in self._plan[len(self._said)]

    def take_forced(self, most: int, num_left: int) -> list[int]:
        taken = ""
        while self._forces and len(taken) < most and not self.finished and len(self._plan[len(self._said)]) == 1:
            taken += self._plan[len(self._said)]
            self._said += taken[-1]
        return list(taken.encode())

    def accept(self, token: int, num_left: int) -> bool:
        letter = chr(token)
        if len(self._said) == self._cut_at:
            self.closed_out = True
            return False
        if letter in self._refused:
            self._refused.remove(letter)
            self._plan[len(self._said)] = self._plan[len(self._said)].replace(letter, "")
            return False
        self._said += letter
        return True


def add(bench: Bench, request: Request, constraint: Letters) -> None:
    bench._note(bench.scheduler.add(request, constraint))


def run(bench: Bench) -> None:
    """As `Bench.run`, with the masks filled where the loop fills them."""
    for _ in range(1000):
        while bench.scheduler.num_outstanding < bench.engine.info.depth and bench.submit():
            bench.scheduler.fill_masks()
        if not bench.scheduler.num_outstanding:
            return
        bench.collect()
    raise AssertionError("not quiet")


def text(bench: Bench, request_id: str) -> str:
    return bytes(token for token in bench.tokens(request_id) if token != END_ID).decode()


@pytest.mark.parametrize("depth", [1, 3])
def test_only_legal_tokens_are_sampled_and_the_end_of_the_grammar_ends_the_request(depth: int) -> None:
    bench = Bench(Script(match="held", text="xbzzz"), Script(match="free", text="free text"), depth=depth)
    add(bench, make_request("held", "held"), Letters("ab", "bc", "c"))
    bench.add(make_request("free", "free"))
    run(bench)
    assert text(bench, "held") == "abc"
    assert bench.finish("held").reason is FinishReason.STOP and bench.finish("held").usage.completion_tokens == 3
    assert text(bench, "free") == "free text"


def test_what_a_grammar_forces_rides_with_the_token_before_it() -> None:
    bench = Bench(Script(match="held", text="axxxd"), Script(match="free", text="free text"), page_size=2)
    add(bench, make_request("held", "held"), Letters("a", "b", "c", "de", *"fghijklmno", "p", forces=True))
    bench.add(make_request("free", "free"))
    run(bench)
    assert text(bench, "held") == "abcdfghijklmnop" and bench.finish("held").usage.completion_tokens == 15
    assert text(bench, "free") == "free text"
    # The prompt; a with bc; d with seven; one more with the rest. What was forced is not sampled again.
    assert [plan.lengths[0] for plan in bench.engine.plans if plan.masks is not None] == [4, 3, 8]


@pytest.mark.parametrize(("depth", "logprobs"), [(3, None), (1, 0)])
def test_nothing_is_forced_where_each_token_is_computed_or_scored_by_itself(depth: int, logprobs: int | None) -> None:
    bench = Bench(Script(match="held", text="abcd"), depth=depth)
    add(bench, make_request("held", "held", logprobs=logprobs), Letters(*"abcd", forces=True))
    run(bench)
    assert text(bench, "held") == "abcd"
    assert [plan.lengths.tolist() for plan in bench.engine.plans] == [[4], [1], [1], [1]]


def test_forced_tokens_stay_within_the_limit() -> None:
    bench = Bench(Script(match="held", text="abcd"))
    add(bench, make_request("held", "held", max_tokens=3), Letters(*"abcdef", forces=True))
    run(bench)
    assert text(bench, "held") == "abc" and bench.finish("held").reason is FinishReason.LENGTH


def test_a_constrained_row_waits_for_its_last_token() -> None:
    bench = Bench(Script(match="held", text="abcdef"), Script(match="free", text="free text"), depth=3)
    add(bench, make_request("held", "held"), Letters(*"abcdef"))
    bench.add(make_request("free", "free"))
    run(bench)
    masked = [plan for plan in bench.engine.plans if plan.masks is not None]
    assert len(masked) == 6
    for plan in masked:
        (segment,) = plan.masks.segments.tolist()  # type: ignore[union-attr]
        assert plan.tokens[int(plan.lengths[: segment + 1].sum()) - 1] >= 0
    assert any(plan.masks is None for plan in bench.engine.plans), "the other stream goes on meanwhile"


@pytest.mark.parametrize("depth", [1, 3])
def test_a_refused_token_is_not_told_and_its_position_runs_again(depth: int) -> None:
    bench = Bench(Script(match="held", text="axc"), depth=depth, page_size=4)
    constraint = Letters("a", "xy", "c", refused="x")
    add(bench, make_request("held", "held", max_tokens=9, logprobs=0), constraint)
    run(bench)
    assert text(bench, "held") == "ayc" and bench.finish("held").reason is FinishReason.STOP
    assert constraint.num_left == [9, 8, 8, 7]
    assert sum(len(event.logprobs or ()) for event in bench.told["held"] if hasattr(event, "logprobs")) == 3


def test_an_answer_that_is_closed_out_ends_by_length() -> None:
    bench = Bench(Script(match="held", text="abc"))
    add(bench, make_request("held", "held"), Letters("a", "b", "c", cut_at=2))
    run(bench)
    assert text(bench, "held") == "ab" and bench.finish("held").reason is FinishReason.LENGTH
    assert bench.scheduler.num_closed_out == 1


def test_a_grammar_that_fails_ends_its_request_alone() -> None:
    bench = Bench(Script(match="held", text="abc"), Script(match="free", text="free text"))
    add(bench, make_request("held", "held"), Letters("a", "b", "c", error_at=1))
    bench.add(make_request("free", "free"))
    run(bench)
    error = bench.end("held")
    assert isinstance(error, ErrorEvent) and error.status == 400 and "too hard" in error.message
    assert text(bench, "free") == "free text"


def test_cancelled_and_preempted_requests_give_everything_back() -> None:
    bench = Bench(Script(match="held", text="a" * 40), num_pages=9, page_size=4, max_num_seqs=4)
    for index in range(3):
        add(bench, make_request(f"held {index}", "held" * 2, max_tokens=20), Letters(*"a" * 20))
    for _ in range(12):
        if bench.submit():
            bench.scheduler.fill_masks()
            bench.collect()
    bench.cancel("held 0")
    run(bench)
    assert bench.scheduler.num_preemptions
    assert text(bench, "held 1") == text(bench, "held 2") == "a" * 20
    assert bench.scheduler.pool.num_used == 0
