"""Requests whose grammar is compiled meanwhile: they come in when it is there, and nobody else waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from scheduler.stepping import make_request
from scheduler.test_constraint import Letters
from twinpath.contracts import Constraint
from twinpath.engine.scripted import Script, ScriptedEngine, ScriptedShape, ScriptFile
from twinpath.errors import InvalidRequest, RequestError
from twinpath.gateway import LocalLauncher, Replica
from twinpath.types import ErrorEvent, Event, FinishEvent, Grammar, Request, TokensEvent

HELD = Grammar("choice", '["ab"]')
#: Longer than a step that is watched for cancellations.
PROMPT = "held, and a prompt of more than sixteen tokens"


class Slow:
    """Compiles when told to."""

    def __init__(self) -> None:
        self.num_compiled = self.num_hits = self.num_failed = 0
        self.waiting: list[Callable[[Constraint | RequestError], None]] = []
        self.asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def prepare(self, request: Request, done: Callable[[Constraint | RequestError], None]) -> None:
        self.waiting.append(done)
        self._loop.call_soon_threadsafe(self.asked.set)

    async def finish(self, outcome: Constraint | RequestError) -> None:
        await asyncio.wait_for(self.asked.wait(), 5)
        self.asked.clear()
        await asyncio.to_thread(self.waiting.pop(), outcome)


@pytest.fixture
async def slow() -> Slow:
    return Slow()


@pytest.fixture
async def replica(slow: Slow) -> AsyncIterator[Replica]:
    scripts = (Script(match="held", text="ab"), Script(match="long", text="x" * 4000, step_ms=1.0))
    engine = ScriptedEngine(ScriptFile(scripts=scripts, engine=ScriptedShape(max_model_len=8192, num_pages=1024)))
    found = Replica(LocalLauncher(engine, constraints=slow), max_waiting=8)
    await found.start()
    yield found
    await found.stop()


def held(request_id: str) -> Request:
    request = make_request(request_id, PROMPT, max_tokens=9)
    return Request(**{name: getattr(request, name) for name in request.__struct_fields__} | {"grammar": HELD})


async def all_of(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def text(events: list[Event]) -> str:
    return bytes(token for event in events if isinstance(event, TokensEvent) for token in event.token_ids).decode()


async def test_an_idle_engine_is_woken_by_the_compiler(replica: Replica, slow: Slow) -> None:
    answer = asyncio.create_task(all_of(replica.generate(held("a"))))
    await slow.finish(Letters("a", "b"))
    events = await asyncio.wait_for(answer, 5)
    assert text(events) == "ab" and isinstance(events[-1], FinishEvent)


async def test_messages_are_heard_after_a_grammar_came_beside_a_running_stream(replica: Replica, slow: Slow) -> None:
    stream = replica.generate(make_request("long", "long, and more than sixteen tokens of prompt", max_tokens=4000))
    await anext(stream)
    for index in range(3):
        answer = asyncio.create_task(all_of(replica.generate(held(f"held {index}"))))
        await slow.finish(Letters("a", "b"))
        assert text(await asyncio.wait_for(answer, 5)) == "ab"
    await stream.aclose()  # type: ignore[attr-defined]
    again = await asyncio.wait_for(all_of(replica.generate(make_request("next", "plain"))), 5)
    assert isinstance(again[-1], FinishEvent) and replica.num_running == 0


async def test_a_grammar_that_cannot_be_compiled_is_the_requests_error(replica: Replica, slow: Slow) -> None:
    answer = asyncio.create_task(all_of(replica.generate(held("a"))))
    await slow.finish(InvalidRequest("too hard", code="invalid_grammar"))
    (error,) = await asyncio.wait_for(answer, 5)
    assert isinstance(error, ErrorEvent) and (error.message, error.code, error.status) == (
        "too hard",
        "invalid_grammar",
        400,
    )


async def test_a_request_cancelled_while_its_grammar_compiles_never_runs(replica: Replica, slow: Slow) -> None:
    answer = asyncio.create_task(all_of(replica.generate(held("a"))))
    await asyncio.wait_for(slow.asked.wait(), 5)
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    plain = await asyncio.wait_for(all_of(replica.generate(make_request("b", "plain"))), 5)
    await slow.finish(Letters("a", "b"))
    assert isinstance(plain[-1], FinishEvent)
    more = await asyncio.wait_for(all_of(replica.generate(make_request("c", "plain"))), 5)
    assert isinstance(more[-1], FinishEvent) and replica.num_inflight == 0
