"""The loop between a channel and an engine: order, quiet, interrupts, ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread

import pytest

from scheduler.stepping import make_request
from twinpath.engine.scripted import END_ID, Script, ScriptedEngine, ScriptedShape, ScriptFile
from twinpath.ipc import ChannelClosed
from twinpath.ipc.messages import Cancel, Drain, Events, Submit, ToEngine, ToGateway
from twinpath.scheduler import EngineLoop, Scheduler, SchedulerLimits
from twinpath.types import Event, FinishEvent, FinishReason, StepResult, TokensEvent

TIMEOUT_S = 30


class Wake:
    """What `Pipe.wake` leaves in the queue."""


class Pipe:
    """A Channel whose other end is the test."""

    def __init__(self) -> None:
        self.to_engine: SimpleQueue[ToEngine | Wake | None] = SimpleQueue()
        self.to_gateway: SimpleQueue[ToGateway] = SimpleQueue()

    def send(self, message: ToGateway) -> None:
        self.to_gateway.put(message)

    def receive(self, timeout_s: float | None = None) -> ToEngine | None:
        try:
            message = self.to_engine.get(timeout_s != 0.0, timeout_s or None)
        except Empty:
            return None
        if message is None:
            raise ChannelClosed("gone")
        return None if isinstance(message, Wake) else message

    def wake(self) -> None:
        self.to_engine.put(Wake())

    def close(self) -> None: ...

    def next_events(self) -> list[Event]:
        message = self.to_gateway.get(timeout=TIMEOUT_S)
        assert isinstance(message, Events)
        return message.events


class Aside(ScriptedEngine):
    """Works beside the processor: a step takes so many looks, or until it is interrupted."""

    num_looks = 3

    def poll(self, timeout_s: float | None = None) -> StepResult | None:
        assert timeout_s == 0.0, "a loop that spins does not wait"
        self.num_looks -= 1
        if self.num_looks > 0 and not self._interrupted:
            return None
        self.num_looks = 3
        return super().poll(timeout_s)


@contextmanager
def looping(
    *scripts: Script, step_tokens: int = 256, spins: bool = False, num_looks: int = 3, **shape: object
) -> Iterator[tuple[Pipe, EngineLoop, Scheduler]]:
    kind = Aside if spins else ScriptedEngine
    engine = kind(ScriptFile(scripts=scripts, engine=ScriptedShape(**shape)))  # type: ignore[arg-type]
    if isinstance(engine, Aside):
        engine.num_looks = num_looks
    scheduler = Scheduler(engine.info, SchedulerLimits(8, step_tokens))
    pipe = Pipe()
    loop = EngineLoop(engine, scheduler, pipe, owns_process=False, spins=spins)
    thread = Thread(target=loop.run, daemon=True)
    thread.start()
    yield pipe, loop, scheduler
    pipe.to_engine.put(None)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("spins", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_requests_are_answered_in_the_order_of_their_steps(depth: int, spins: bool) -> None:
    with looping(Script(match="hi", text="abc"), depth=depth, spins=spins) as (pipe, _, _):
        pipe.to_engine.put(Submit(make_request("r", "hi")))
        told = [event for _ in range(4) for event in pipe.next_events()]
    assert [event.token_ids for event in told if isinstance(event, TokensEvent)] == [[97], [98], [99], [END_ID]]
    assert isinstance(told[-1], FinishEvent)


def test_an_idle_loop_does_not_turn() -> None:
    with looping(Script(text="a")) as (pipe, loop, _):
        pipe.to_engine.put(Submit(make_request("r", "hi")))
        while not isinstance(pipe.next_events()[-1], FinishEvent):
            pass
        first = loop.heartbeat()
        # Two messages that are nothing to do: the loop wakes for each, and only for them.
        pipe.to_engine.put(Cancel("unknown"))
        pipe.to_engine.put(Submit(make_request("empty", "")))
        pipe.next_events()
        second = loop.heartbeat()
    assert not first.busy and not second.busy
    assert second.progress - first.progress <= 3


def test_cancel_is_seen_while_the_engine_is_inside_a_step() -> None:
    """The step would take 100 s."""
    with looping(layers=10_000, prefill_us_per_token=50_000, max_step_tokens=2000, step_tokens=2000) as (
        pipe,
        loop,
        scheduler,
    ):
        pipe.to_engine.put(Submit(make_request("r", "x" * 2000)))
        while scheduler.num_outstanding == 0 or loop.heartbeat().progress < 5:
            pass
        assert loop.heartbeat().busy
        pipe.to_engine.put(Cancel("r"))
        (finish,) = pipe.next_events()
        assert isinstance(finish, FinishEvent) and finish.reason is FinishReason.ABORT
    assert scheduler.pool.num_used == 0


def test_a_loop_that_spins_sees_what_comes_during_a_step() -> None:
    """The step would never end; nobody but the loop reads the channel."""
    with looping(spins=True, num_looks=1 << 60, depth=2) as (pipe, loop, scheduler):
        pipe.to_engine.put(Submit(make_request("long", "x" * 200)))
        while scheduler.num_outstanding == 0:
            pass
        pipe.to_engine.put(Submit(make_request("empty", "")))
        (refusal,) = pipe.next_events()
        assert refusal.request_id == "empty" and loop.heartbeat().busy
        pipe.to_engine.put(Cancel("long"))
        (finish,) = pipe.next_events()
        assert isinstance(finish, FinishEvent) and finish.reason is FinishReason.ABORT
    assert scheduler.pool.num_used == 0


def test_others_in_an_interrupted_step_get_the_same_tokens() -> None:
    slow = {"layers": 100, "prefill_us_per_token": 5_000, "max_step_tokens": 256}
    with looping(Script(match="good", text="0123456789"), **slow) as (pipe, _, scheduler):
        pipe.to_engine.put(Submit(make_request("good", "good")))
        told = pipe.next_events()
        pipe.to_engine.put(Submit(make_request("big", "x" * 4000)))
        while scheduler.num_running < 2:
            pass
        pipe.to_engine.put(Cancel("big"))
        while not (isinstance(told[-1], FinishEvent) and told[-1].request_id == "good"):
            told += pipe.next_events()
    tokens = [t for e in told if isinstance(e, TokensEvent) and e.request_id == "good" for t in e.token_ids]
    assert bytes(tokens[:-1]) == b"0123456789"


def test_drain_ends_the_loop_and_an_engines_exception_passes() -> None:
    engine = ScriptedEngine(ScriptFile(scripts=(Script(text="abc", raise_at=1),)))
    for message, error in ((Drain(), None), (Submit(make_request("r", "hi")), RuntimeError)):
        pipe = Pipe()
        loop = EngineLoop(engine, Scheduler(engine.info, SchedulerLimits(8, 256)), pipe, owns_process=False)
        pipe.to_engine.put(message)
        if error is None:
            loop.run()
        else:
            with pytest.raises(error, match="scripted exception"):
                loop.run()
        pipe.to_engine.put(None)


def test_warm_up_runs_one_forward_and_leaves_nothing() -> None:
    engine = ScriptedEngine(keep_plans=True)
    scheduler = Scheduler(engine.info, SchedulerLimits(8, 256))
    EngineLoop(engine, scheduler, Pipe(), owns_process=False).warm_up()
    assert len(engine.plans) == 2 and engine.plans[0].sample.all()
    assert scheduler.pool.num_available == scheduler.pool.num_pages and len(scheduler.prefix) == 0
    assert scheduler.num_running == scheduler.num_waiting == scheduler.num_outstanding == 0


def test_only_the_owner_of_the_process_touches_the_garbage_collector() -> None:
    engine = ScriptedEngine()
    for owns, enabled in ((False, True), (True, False)):
        pipe = Pipe()
        pipe.to_engine.put(Drain())
        try:
            EngineLoop(engine, Scheduler(engine.info, SchedulerLimits(8, 256)), pipe, owns_process=owns).run()
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
            gc.unfreeze()
            pipe.to_engine.put(None)


def test_an_idle_engine_prepares_until_a_message_comes() -> None:
    class Preparing(ScriptedEngine):
        num_prepared = 0

        def prepare(self) -> bool:
            self.num_prepared += 1
            if self.num_prepared == 3:
                pipe.to_engine.put(Drain())
            return True

    engine, pipe = Preparing(), Pipe()
    try:
        EngineLoop(engine, Scheduler(engine.info, SchedulerLimits(8, 256)), pipe).run()
    finally:
        gc.enable()
        gc.unfreeze()
    assert engine.num_prepared == 3
