"""Requests that share one prompt: the first computes it, the others find it."""

from __future__ import annotations

import asyncio

import msgspec

from gateway.asking import SCRIPT, ask, assert_one_terminal_event, assert_serves, make_request, running, text_of, until
from twinpath.config import SchedulerConfig
from twinpath.engine.scripted import Script, ScriptedEngine, ScriptFile
from twinpath.gateway import LocalLauncher
from twinpath.types import ErrorEvent, Event, FinishEvent, Request

PROMPT = "a long prompt of many pages, " * 30
PAGE_SIZE = SCRIPT.engine.page_size
FAILS_AT_ONCE = ScriptFile(scripts=(Script(match="fail", text="abc", fail_at=0),))


def group(prompt: str, size: int) -> list[Request]:
    leader = make_request("r0", prompt)
    followers = [make_request(f"r{n}", prompt) for n in range(1, size)]
    return [leader, *(msgspec.structs.replace(follower, follows="r0") for follower in followers)]


def cached_tokens(events: list[Event]) -> int:
    finish = events[-1]
    assert isinstance(finish, FinishEvent)
    return finish.usage.cached_tokens


async def test_a_group_costs_one_prefill() -> None:
    engine = ScriptedEngine(SCRIPT, keep_plans=True)
    async with running(LocalLauncher(engine)) as replica:
        answers = await asyncio.gather(*(ask(replica, request) for request in group(PROMPT, 4)))
        assert [text_of(events) for events in answers] == ["hello"] * 4
        least = len(PROMPT) - PAGE_SIZE
        assert [cached_tokens(events) >= least for events in answers] == [False, True, True, True]
        # One prompt, the last page again for each follower, and six tokens of each answer.
        computed = sum(len(plan.tokens) for plan in engine.plans)
        assert len(PROMPT) < computed <= len(PROMPT) + 3 * PAGE_SIZE + 4 * 6


async def test_followers_wait_as_long_as_their_leader_has_no_token() -> None:
    async with running(LocalLauncher(ScriptedEngine(SCRIPT), SchedulerConfig(max_num_seqs=1))) as replica:
        blocker = replica.generate(make_request("blocker", "slow"))
        await anext(blocker)
        asked = [asyncio.ensure_future(ask(replica, request)) for request in group(PROMPT, 2)]
        await until(lambda: replica.num_waiting == 2)
        for waiting in asked:
            waiting.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert replica.num_waiting == 0
        await blocker.aclose()


async def test_a_follower_that_leaves_before_it_started_leaves_nothing() -> None:
    async with running(LocalLauncher(ScriptedEngine(SCRIPT))) as replica:
        leader, follower = group("slow" + PROMPT, 2)
        first = replica.generate(leader)
        waiting = asyncio.ensure_future(ask(replica, follower))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await anext(first)
        await first.aclose()
        await until(lambda: replica.num_inflight == 0)
        await assert_serves(replica, "next")


async def test_followers_start_when_their_leader_is_gone() -> None:
    async with running(LocalLauncher(ScriptedEngine(SCRIPT))) as replica:
        follower = msgspec.structs.replace(make_request("r1", "hi"), follows="nobody")
        assert text_of(await ask(replica, follower)) == "hello"
        leader, follower = group("slow" + PROMPT, 2)
        first = replica.generate(leader)
        await anext(first)
        short = msgspec.structs.replace(follower, sampling=msgspec.structs.replace(follower.sampling, max_tokens=3))
        waiting = asyncio.ensure_future(ask(replica, short))
        await first.aclose()
        events = await waiting
        assert_one_terminal_event(events)


async def test_a_leader_s_failure_does_not_leave_its_followers_waiting() -> None:
    async with running(LocalLauncher(ScriptedEngine(FAILS_AT_ONCE))) as replica:
        answers = await asyncio.gather(*(ask(replica, request) for request in group("fail", 3)))
        assert [type(event) for events in answers for event in events] == [ErrorEvent] * 3
