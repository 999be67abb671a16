"""The watchdog over engines that are nothing but their words: what is a fault, what is not, and what follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from twinpath.errors import EngineError, UserError
from twinpath.gateway import ReplicaState, WatchdogLimits
from twinpath.gateway.supervisor import Supervisor
from twinpath.ipc.link import LinkHandler
from twinpath.ipc.messages import Answer, Events, Fatal, Gauges, Heartbeat, LoadProgress, Ready, ToEngine

TIMEOUT_S = 30.0
LIMITS = WatchdogLimits(
    silent_s=0.3, loading_silent_s=0.3, stuck_s=0.3, check_s=0.01, backoff_s=0.001, max_backoff_s=0.004
)
READY = Ready(512, 4096, 16, 512, "words only")

Behaviour = Callable[[LinkHandler], Awaitable[None]]


class WordsOnly:
    """A launcher and its handle: an engine is a coroutine that speaks to the handler; its return closes the link."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self._behaviours = list(behaviours)
        self._task: asyncio.Task[None] | None = None
        self.num_launched = 0
        self.num_killed = 0
        self.sent: list[ToEngine] = []
        self.pid: int | None = None

    async def launch(self, handler: LinkHandler) -> WordsOnly:
        self.num_launched += 1
        behaviour = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]

        async def live() -> None:
            await behaviour(handler)
            handler.on_closed("end")

        self._task = asyncio.create_task(live())
        return self

    def send(self, message: ToEngine) -> None:
        self.sent.append(message)

    def ring(self) -> None: ...

    async def stop(self, timeout_s: float) -> None:
        await self.kill()

    async def kill(self) -> str:
        self.num_killed += 1
        assert self._task is not None
        self._task.cancel()
        return "killed"


class Ears:
    """A SupervisorListener that remembers."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_events(self, message: Events) -> None: ...

    def on_answer(self, message: Answer) -> None: ...

    def on_ready(self) -> None: ...

    def on_down(self, reason: str) -> None:
        self.reasons.append(reason)


async def beat(handler: LinkHandler, num_beats: int, *, busy: bool, growing: bool) -> None:
    for number in range(num_beats):
        handler.on_message(Heartbeat(busy, number if growing else 7, Gauges(running=int(busy))))
        await asyncio.sleep(0.02)


def ready_then(*, num_beats: int = 10_000, busy: bool = False, growing: bool = True) -> Behaviour:
    async def behaviour(handler: LinkHandler) -> None:
        handler.on_message(READY)
        await beat(handler, num_beats, busy=busy, growing=growing)

    return behaviour


async def silent(handler: LinkHandler) -> None:
    handler.on_message(READY)
    await asyncio.sleep(600)


async def dies_while_loading(handler: LinkHandler) -> None:
    handler.on_message(LoadProgress(1, 10, "embed"))


@asynccontextmanager
async def supervised(
    *behaviours: Behaviour, limits: WatchdogLimits = LIMITS
) -> AsyncIterator[tuple[Supervisor, WordsOnly, Ears]]:
    launcher, ears = WordsOnly(*behaviours), Ears()
    supervisor = Supervisor(launcher, ears, limits)
    async with asyncio.timeout(TIMEOUT_S):
        await supervisor.start()
        try:
            yield supervisor, launcher, ears
        finally:
            await supervisor.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("faulty", "reason"),
    [
        (silent, "it was silent"),
        (ready_then(busy=True, growing=False), "it made no progress"),
        (ready_then(num_beats=3), "its process ended"),
    ],
)
async def test_a_fault_ends_the_engine_and_the_next_one_is_ready(faulty: Behaviour, reason: str) -> None:
    async with supervised(faulty, ready_then()) as (supervisor, launcher, ears):
        await until(lambda: launcher.num_launched == 2 and supervisor.state is ReplicaState.READY)
        assert len(ears.reasons) == 1 and reason in ears.reasons[0] and "killed" in ears.reasons[0]
        assert (launcher.num_killed, supervisor.num_restarts) == (1, 1)


@pytest.mark.parametrize("behaviour", [ready_then(busy=True), ready_then(busy=False, growing=False)])
async def test_work_and_idleness_are_no_faults(behaviour: Behaviour) -> None:
    """Twice as long as the limit for a hang."""
    finished = asyncio.Event()

    async def watched(handler: LinkHandler) -> None:
        asyncio.get_running_loop().call_later(2 * LIMITS.stuck_s, finished.set)
        await behaviour(handler)

    async with supervised(watched) as (supervisor, launcher, ears):
        await finished.wait()
        assert supervisor.state is ReplicaState.READY and launcher.num_launched == 1 and not ears.reasons


async def test_an_engine_is_not_blamed_for_our_own_sleep() -> None:
    async with supervised(ready_then(busy=True)) as (supervisor, launcher, ears):
        await until(lambda: supervisor.gauges.running == 1)
        for _ in range(3):
            time.sleep(2 * LIMITS.silent_s)  # The whole event loop stands still, as under a long garbage collection.
            await asyncio.sleep(0.05)
        assert launcher.num_launched == 1 and not ears.reasons


async def test_last_words_tell_why_and_close_the_door_before_the_end() -> None:
    leave = asyncio.Event()

    async def failing(handler: LinkHandler) -> None:
        handler.on_message(READY)
        await leave.wait()
        handler.on_message(Fatal("out of memory"))
        await asyncio.sleep(0.05)

    async with supervised(failing, ready_then()) as (supervisor, _, ears):
        leave.set()
        await until(lambda: supervisor.state is ReplicaState.RESTARTING)
        assert not ears.reasons  # The door closed first.
        await until(lambda: supervisor.state is ReplicaState.READY)
        assert "out of memory" in ears.reasons[0]


@pytest.mark.parametrize(("user_error", "expected"), [(True, UserError), (False, EngineError)])
async def test_a_first_start_that_fails_raises_the_engines_own_words(
    user_error: bool, expected: type[Exception]
) -> None:
    async def refusing(handler: LinkHandler) -> None:
        handler.on_message(Fatal("layer 3 is truncated", user_error))

    supervisor = Supervisor(WordsOnly(refusing), Ears(), LIMITS)
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(expected, match="layer 3 is truncated"):
            await supervisor.start()
        assert supervisor.state is ReplicaState.FAILED
        assert await supervisor.wait_ready(TIMEOUT_S) is False
        await supervisor.stop()


async def test_a_first_start_that_dies_without_a_word_fails() -> None:
    supervisor = Supervisor(WordsOnly(dies_while_loading), Ears(), LIMITS)
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(EngineError, match=r"did not start: its process ended \(killed\)"):
            await supervisor.start()
        await supervisor.stop()


async def test_restarts_are_given_up_after_five_that_never_became_ready() -> None:
    async with supervised(ready_then(num_beats=1), dies_while_loading) as (supervisor, launcher, _):
        await until(lambda: supervisor.state is ReplicaState.FAILED)
        assert launcher.num_launched == 1 + LIMITS.max_failed_starts


async def test_an_engine_that_dies_young_again_and_again_is_started_again_and_again() -> None:
    async with supervised(ready_then(num_beats=1)) as (supervisor, launcher, ears):
        await until(lambda: launcher.num_launched >= 12)
        assert supervisor.state is not ReplicaState.FAILED and len(ears.reasons) >= 11


def test_the_first_restart_is_at_once_and_later_ones_wait_longer_up_to_a_limit() -> None:
    supervisor = Supervisor(WordsOnly(silent), Ears(), WatchdogLimits(backoff_s=0.25, max_backoff_s=5.0))
    waits = [supervisor._backoff_s(num_failures) for num_failures in range(9)]
    assert waits == [0, 0, 0.25, 0.5, 1, 2, 4, 5, 5]
