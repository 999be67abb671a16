"""Requests that nobody sent leave nothing behind."""

from __future__ import annotations

import pytest

from scheduler.stepping import Bench
from twinpath.scheduler import LaneSettings
from twinpath.scheduler.rehearsal import Rehearsal


@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("lanes", [None, LaneSettings()])
@pytest.mark.parametrize("step_tokens", [1, 8, 64])
def test_every_run_plans_a_prompt_and_frees_what_it_took(
    page_size: int, lanes: LaneSettings | None, step_tokens: int
) -> None:
    bench = Bench(page_size=page_size, lanes=lanes, step_tokens=step_tokens)
    rehearsal = Rehearsal(bench.scheduler.info, bench.scheduler.limits)
    own = rehearsal._scheduler
    for num_runs in range(1, 20):
        rehearsal.run()
        assert own.num_running == own.num_outstanding == 1
        rehearsal.run()  # A second ring before the first was ended.
        assert own.num_running == own.num_outstanding == 1
        rehearsal.end()
        rehearsal.end()
        assert own.num_running == own.num_outstanding == own.num_waiting == 0
        assert own.num_steps == num_runs and own.pool.num_free == own.pool.num_pages
        own.check_integrity()


@pytest.mark.parametrize("max_model_len", [1, 2, 3])
def test_a_window_without_room_for_a_prompt_is_no_error(max_model_len: int) -> None:
    bench = Bench(max_model_len=max_model_len)
    rehearsal = Rehearsal(bench.scheduler.info, bench.scheduler.limits)
    for _ in range(3):
        rehearsal.run()
        rehearsal.end()
    assert rehearsal._scheduler.num_running == 0
