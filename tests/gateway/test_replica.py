"""Generate over an engine in a thread: order, admission, cancellation, failures, shutdown."""

from __future__ import annotations

import asyncio

import pytest

from gateway.asking import (
    SCRIPT,
    TIMEOUT_S,
    ask,
    assert_one_terminal_event,
    assert_serves,
    local_launcher,
    make_request,
    running,
    text_of,
    until,
)
from twinpath.config import SchedulerConfig
from twinpath.errors import EngineError, InvalidRequest, Overloaded
from twinpath.gateway import LocalLauncher, Replica, ReplicaState
from twinpath.types import ErrorEvent, FinishEvent, FinishReason, TokensEvent


async def test_a_request_gets_its_tokens_then_one_finish() -> None:
    async with running(local_launcher()) as replica:
        assert replica.state is ReplicaState.READY and replica.info is not None
        events = await ask(replica, make_request("r", "hi"))
        assert_one_terminal_event(events)
        assert text_of(events) == "hello"
        finish = events[-1]
        assert isinstance(finish, FinishEvent) and finish.reason is FinishReason.STOP
        assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (2, 6)
        assert replica.num_inflight == 0 and replica.seconds_since_token is None
    assert replica.state is ReplicaState.STOPPED


async def test_many_requests_at_once_each_get_their_own() -> None:
    async with running(local_launcher()) as replica:
        answers = await asyncio.gather(*(ask(replica, make_request(f"r{n}", f"hi {n}")) for n in range(200)))
        assert [text_of(events) for events in answers] == ["hello"] * 200
        for events in answers:
            assert_one_terminal_event(events)


async def test_closing_the_iterator_cancels_and_frees_everything() -> None:
    launcher = local_launcher()
    async with running(launcher) as replica:
        stream = replica.generate(make_request("r", "slow"))
        assert isinstance(await anext(stream), TokensEvent)
        assert (replica.num_running, replica.num_waiting) == (1, 0)
        await stream.aclose()
        assert replica.num_running == 0
        await until(lambda: replica.num_inflight == 0)
        assert launcher.scheduler is not None
        await until(lambda: launcher.scheduler.pool.num_used == 0)
        await assert_serves(replica, "next")


async def test_cancelling_the_reading_task_cancels_the_request() -> None:
    async with running(local_launcher()) as replica:
        task = asyncio.create_task(ask(replica, make_request("r", "slow")))
        await until(lambda: replica.num_running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: replica.num_inflight == 0)


async def test_one_failing_request_leaves_the_others_alone() -> None:
    async with running(local_launcher()) as replica:
        failed, good = await asyncio.gather(
            ask(replica, make_request("bad", "fail")), ask(replica, make_request("good", "hi"))
        )
        assert text_of(failed) == "abc" and isinstance(failed[-1], ErrorEvent)
        assert failed[-1].message == "scripted failure"
        assert text_of(good) == "hello" and replica.num_restarts == 0


@pytest.mark.parametrize("cue", ["raise", "hang"])
async def test_engine_fault_ends_requests_with_an_error_and_the_next_engine_serves(cue: str) -> None:
    async with running(local_launcher()) as replica:
        bystander = asyncio.create_task(ask(replica, make_request("bystander", "slow")))
        await until(lambda: replica.num_running == 1)
        events = await ask(replica, make_request("bad", cue))
        for told in (events, await bystander):
            assert_one_terminal_event(told)
            assert isinstance(told[-1], ErrorEvent) and told[-1].code == "engine_error" and told[-1].status == 500
        assert text_of(events) == "abc"
        await assert_serves(replica, "next")
        assert replica.num_restarts == 1 and replica.num_inflight == 0


async def test_a_long_prefill_is_no_hang() -> None:
    """3,000 tokens at 1 ms: twice the time that would be a hang, but layers go by."""
    shape = SCRIPT.engine.__class__(layers=40, prefill_us_per_token=700, max_step_tokens=4096)
    script = SCRIPT.__class__(engine=shape, default=SCRIPT.default)
    config = SchedulerConfig(max_num_batched_tokens=4096)
    async with running(local_launcher(script, config)) as replica:
        events = await ask(replica, make_request("r", "x" * 3000))
        assert text_of(events) == "hello" and replica.num_restarts == 0


async def test_cancelling_a_long_prefill_interrupts_the_step() -> None:
    """The step would take 100 s, longer than the test may."""
    shape = SCRIPT.engine.__class__(layers=10_000, prefill_us_per_token=50_000, max_step_tokens=4096)
    script = SCRIPT.__class__(engine=shape, default=SCRIPT.default)
    launcher = local_launcher(script, SchedulerConfig(max_num_batched_tokens=4096))
    async with running(launcher) as replica:
        task = asyncio.create_task(ask(replica, make_request("r", "x" * 2000)))
        await until(lambda: launcher.scheduler is not None and launcher.scheduler.num_outstanding == 1)
        task.cancel()
        await until(lambda: replica.num_inflight == 0)
        assert launcher.scheduler is not None
        await until(lambda: launcher.scheduler.pool.num_used == 0)


async def test_more_waiting_than_allowed_is_429_with_a_time_to_retry() -> None:
    config = SchedulerConfig(max_num_seqs=1)
    async with running(local_launcher(config=config), max_waiting=2) as replica:
        tasks = [asyncio.create_task(ask(replica, make_request(f"r{n}", "slow"))) for n in range(3)]
        await until(lambda: replica.num_running == 1 and replica.num_waiting == 2)
        with pytest.raises(Overloaded) as refusal:
            await ask(replica, make_request("late", "hi"))
        assert refusal.value.status == 429 and (refusal.value.retry_after_s or 0) >= 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: replica.num_inflight == 0)
        await assert_serves(replica, "next")


async def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    async with running(local_launcher()) as replica:
        first = asyncio.create_task(ask(replica, make_request("same", "slow", max_tokens=100)))
        await until(lambda: replica.num_running == 1)
        with pytest.raises(InvalidRequest, match="in use"):
            await ask(replica, make_request("same", "hi"))
        assert len(text_of(await first)) == 100


async def test_drain_lets_running_requests_end_and_refuses_new_ones() -> None:
    async with running(local_launcher()) as replica:
        task = asyncio.create_task(ask(replica, make_request("r", "slow", max_tokens=50)))
        await until(lambda: replica.num_running == 1)
        draining = asyncio.create_task(replica.drain(TIMEOUT_S))
        await until(lambda: replica.state is ReplicaState.DRAINING)
        with pytest.raises(Overloaded) as refusal:
            await ask(replica, make_request("late", "hi"))
        assert refusal.value.status == 503
        assert await draining is True
        assert len(text_of(await task)) == 50


async def test_drain_gives_up_in_time_and_stop_ends_the_rest_with_an_error() -> None:
    async with running(local_launcher()) as replica:
        task = asyncio.create_task(ask(replica, make_request("r", "slow")))
        await until(lambda: replica.num_running == 1)
        assert await replica.drain(0.01) is False
        await replica.stop()
        events = await task
        assert_one_terminal_event(events)
        assert isinstance(events[-1], ErrorEvent) and "shutting down" in events[-1].message


async def test_an_engine_that_cannot_be_built_fails_the_start_with_its_reason() -> None:
    def broken() -> None:
        raise OSError("no such device")

    replica = Replica(LocalLauncher(broken))  # type: ignore[arg-type]
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(EngineError, match="no such device"):
            await replica.start()
        assert replica.state is ReplicaState.FAILED
        with pytest.raises(Overloaded) as refusal:
            await ask(replica, make_request("r", "hi"))
        assert refusal.value.status == 503
        await replica.stop()
