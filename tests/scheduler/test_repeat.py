"""A plan that cannot change says how often it may run; committing such a run is committing its steps."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from scheduler.stepping import make_request
from twinpath.scheduler import LaneSettings, Scheduler, SchedulerLimits
from twinpath.types import EngineInfo, FinishEvent, FinishReason, StepPlan, StepResult, TokensEvent

PAGE_SIZE = 4


def make_scheduler(*, num_pages: int = 64, max_num_seqs: int = 4, depth: int = 1, lanes: bool = False) -> Scheduler:
    info = EngineInfo(
        num_layers=2,
        hidden_size=4,
        vocab_size=512,
        max_model_len=128,
        page_size=PAGE_SIZE,
        num_pages=num_pages,
        max_slots=8,
        max_step_tokens=64,
        depth=depth,
    )
    return Scheduler(info, SchedulerLimits(max_num_seqs, 64, lanes=LaneSettings() if lanes else None))


def run(scheduler: Scheduler, plan: StepPlan | None, rows: list[list[int]]) -> list[object]:
    assert plan is not None
    counts = np.array([len(row) for row in rows], np.int32)
    events = scheduler.commit(StepResult(plan.step_id, counts, np.array(list(chain(*rows)), np.int32)))
    scheduler.check_integrity()
    return list(events)


def started(scheduler: Scheduler, *names: str, num_prompt: int = 5, max_tokens: int = 40) -> None:
    """Requests that told their first token."""
    for index, name in enumerate(names):
        prompt = list(range(10 + index, 10 + index + num_prompt))
        assert not scheduler.add(make_request(name, bytes(prompt), max_tokens=max_tokens))
    plan = scheduler.plan(100)
    assert plan is not None and plan.repeat == 1, "a prefill does not repeat"
    run(scheduler, plan, [[100]] * len(names))


@pytest.mark.parametrize("lanes", [False, True])
def test_decode_repeats_and_reaches_far_enough(lanes: bool) -> None:
    scheduler = make_scheduler(lanes=lanes)
    started(scheduler, "a", "b")
    plan = scheduler.plan(9)
    assert plan is not None and plan.repeat == 9
    assert plan.starts.tolist() == [5, 5] and plan.block_tables.shape[1] * PAGE_SIZE >= 5 + 9
    events = run(scheduler, plan, [list(range(101, 110)), list(range(201, 210))])
    assert [event.token_ids for event in events if isinstance(event, TokensEvent)] == [
        list(range(101, 110)),
        list(range(201, 210)),
    ]
    after = scheduler.plan()
    assert after is not None and after.starts.tolist() == [14, 14] and after.tokens.tolist() == [109, 209]
    assert scheduler.num_steps == 10


def test_fewer_repeats_than_allowed_count_as_run() -> None:
    scheduler = make_scheduler()
    started(scheduler, "a")
    run(scheduler, scheduler.plan(30), [[1, 2, 3]])
    after = scheduler.plan(30)
    assert after is not None and after.starts.tolist() == [8] and after.tokens.tolist() == [3]


def test_stop_token_in_a_run_drops_what_follows() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", bytes([1, 2, 3]), max_tokens=40, stop_token_ids=(7,)))
    run(scheduler, scheduler.plan(), [[50]])
    events = run(scheduler, scheduler.plan(6), [[51, 7, 52, 53, 54, 55]])
    tokens, finish = events
    assert isinstance(tokens, TokensEvent) and tokens.token_ids == [51, 7]
    assert isinstance(finish, FinishEvent) and finish.reason is FinishReason.STOP
    assert scheduler.pool.num_used == 0
    # Its KV is found again as far as its tokens count, not further: pages of 4 hold [1 2 3 50].
    scheduler.add(make_request("b", bytes([1, 2, 3, 50, 51, 7, 52, 53, 54, 55]), max_tokens=2))
    [event] = run(scheduler, scheduler.plan(), [[60]])
    assert isinstance(event, TokensEvent) and event.cached_tokens == 4


def test_never_beyond_the_shortest_rest() -> None:
    scheduler = make_scheduler()
    started(scheduler, "long", max_tokens=40)
    scheduler.add(make_request("short", bytes([1, 2]), max_tokens=4))
    run(scheduler, scheduler.plan(100), [[101], [201]])
    plan = scheduler.plan(100)
    assert plan is not None and plan.repeat == 3


def test_who_waits_for_a_free_slot_ends_it() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    started(scheduler, "a")
    scheduler.add(make_request("b", bytes([1, 2])))
    plan = scheduler.plan(10)
    assert plan is not None and plan.repeat == 1, "b comes in"
    run(scheduler, plan, [[101], [201]])
    scheduler.add(make_request("c", bytes([3, 4])))
    plan = scheduler.plan(10)
    assert plan is not None and plan.repeat == 10, "c cannot come in, whatever happens meanwhile"


def test_too_few_pages_and_deeper_engines_do_not_repeat() -> None:
    scheduler = make_scheduler(num_pages=3)
    started(scheduler, "a", max_tokens=6)
    plan = scheduler.plan(5)
    assert plan is not None and plan.repeat == 5
    crowded = make_scheduler(num_pages=4)
    started(crowded, "a", "b", num_prompt=3, max_tokens=8)
    plan = crowded.plan(7)
    assert plan is not None and plan.repeat == 1
    deep = make_scheduler(depth=2)
    started(deep, "a")
    plan = deep.plan(5)
    assert plan is not None and plan.repeat == 1


def test_cancelled_in_a_run() -> None:
    scheduler = make_scheduler()
    started(scheduler, "a", "b")
    plan = scheduler.plan(8)
    scheduler.cancel("a")
    [event] = run(scheduler, plan, [[1] * 8, [2] * 8])
    assert isinstance(event, TokensEvent) and event.request_id == "b" and len(event.token_ids) == 8
    after = scheduler.plan()
    assert after is not None and after.starts.tolist() == [13]
