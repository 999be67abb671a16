"""Sessions and templates through the gateway: asked, answered, refused, and pinned again in the next engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from gateway.asking import ask, assert_serves, local_launcher, make_request, process_launcher, running, until
from twinpath.config import SchedulerConfig
from twinpath.errors import EngineError, Overloaded, RequestError, UserError
from twinpath.gateway import Holdings, Replica
from twinpath.ipc.messages import Answer, PinnedPrompt, ToEngine
from twinpath.types import FinishEvent, Request

BEGINNING = "a system prompt of some length, and a list of tools"


def prompt(name: str = "t", text: str = BEGINNING, **fields: object) -> PinnedPrompt:
    return PinnedPrompt(name, list(text.encode()), **fields)  # type: ignore[arg-type]


def in_session(request: Request, name: str, tenant: str = "") -> Request:
    return msgspec.structs.replace(request, session=f"{tenant}/{name}", session_name=name, tenant=tenant)


async def cached(replica: Replica, request: Request) -> int:
    end = (await ask(replica, request))[-1]
    assert isinstance(end, FinishEvent)
    return end.usage.cached_tokens


async def test_a_pinned_beginning_is_there_for_the_first_request() -> None:
    async with running(local_launcher()) as replica:
        card = await replica.holdings.pin(prompt())
        assert (card.num_tokens, card.num_pinned_tokens, card.num_pages, card.ready) == (51, 48, 3, True)
        assert await cached(replica, make_request("r", BEGINNING + "hello")) == 48
        assert [one.num_hits for one in await replica.holdings.templates()] == [1]
        removed = await replica.holdings.unpin("t")
        assert removed is not None and await replica.holdings.unpin("t") is None
        assert await replica.holdings.templates() == []


async def test_refusals_are_the_callers_own() -> None:
    async with running(local_launcher(config=SchedulerConfig(max_pinned_share=0.01))) as replica:
        await replica.holdings.pin(prompt("first"))
        for bad in (prompt("first"), prompt("second"), prompt("short", "few words"), prompt("long", "x" * 5000)):
            with pytest.raises(RequestError) as refused:
                await replica.holdings.pin(bad)
            assert refused.value.status == 409
        assert [one.name for one in await replica.holdings.templates()] == ["first"]
        await assert_serves(replica, "r")


async def test_sessions_are_seen_by_their_own_tenant_and_end_when_told() -> None:
    async with running(local_launcher()) as replica:
        for tenant in ("a", "b"):
            await ask(replica, in_session(make_request(f"r{tenant}", BEGINNING), "s", tenant))
        [card] = await replica.holdings.sessions("a")
        assert (card.name, card.num_turns, card.num_active, card.num_pages) == ("s", 1, 0, 3)
        assert await replica.holdings.sessions("b", "a/s") == []
        ended = await replica.holdings.end_session("a/s")
        assert ended is not None and ended.name == "s"
        assert await replica.holdings.end_session("a/s") is None
        assert await replica.holdings.sessions("a") == [] and len(await replica.holdings.sessions("b")) == 1


async def test_idle_sessions_expire_though_nobody_asks() -> None:
    launcher = local_launcher(config=SchedulerConfig(session_ttl_s=0.2))
    async with running(launcher) as replica:
        await ask(replica, in_session(make_request("r", BEGINNING), "s"))
        scheduler = launcher.scheduler
        assert scheduler is not None
        await until(lambda: scheduler.pool.num_free == scheduler.pool.num_pages)
        await until(lambda: replica.gauges.memory.num_sessions_expired == 1)


async def test_templates_are_pinned_again_in_the_next_engine_before_it_serves(tmp_path: Path) -> None:
    async with running(process_launcher(tmp_path)) as replica:
        replica.holdings.preset([prompt("preset")])
        await replica.holdings.settle()
        await replica.holdings.pin(prompt("posted", BEGINNING * 2))
        await replica.holdings.pin(prompt("dropped", "x" * 40))
        await replica.holdings.unpin("dropped")
        await ask(replica, make_request("r", "crash"))
        # The request waits for the new engine, and comes after its templates.
        assert await cached(replica, make_request("next", BEGINNING * 2 + "hello")) == 96
        assert replica.num_restarts == 1
        assert sorted(one.name for one in await replica.holdings.templates()) == ["posted", "preset"]


async def test_preset_templates_wait_for_the_engine_and_a_refused_one_is_said() -> None:
    replica = Replica(local_launcher())
    replica.holdings.preset([prompt("good"), prompt("too short", "x")])
    async with asyncio.timeout(30):
        await replica.start()
        with pytest.raises(UserError, match=r"too short.*less than one page"):
            await replica.holdings.settle()
        assert [one.name for one in await replica.holdings.templates()] == ["good"]
        assert replica.holdings.num_computing == 0
        await replica.stop()


async def test_calls_fail_when_no_engine_is_there_and_when_it_goes() -> None:
    sent: list[ToEngine] = []
    holdings = Holdings(sent.append)
    with pytest.raises(Overloaded):
        await holdings.templates()
    holdings.on_ready()
    asking = asyncio.create_task(holdings.templates())
    await asyncio.sleep(0)
    assert len(sent) == 1
    holdings.on_down("it is gone")
    with pytest.raises(EngineError, match="gone"):
        await asking
    holdings.on_answer(Answer(1))  # A late word of the engine that went.


async def test_deleting_a_template_that_is_computed_refuses_its_pin() -> None:
    launcher = local_launcher()
    async with running(launcher) as replica:
        stream = replica.generate(make_request("r", "slow"))
        await anext(stream)
        slow = asyncio.create_task(replica.holdings.pin(prompt("t", "slow" * 500)))
        await until(lambda: launcher.scheduler is not None and len(launcher.scheduler.memory.templates))
        removed = await replica.holdings.unpin("t")
        assert removed is not None
        with pytest.raises(RequestError, match="deleted"):
            await slow
        await stream.aclose()
        assert await replica.holdings.templates() == []
