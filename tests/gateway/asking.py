"""Requests to a replica, and what came back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.engine.scripted import END_ID, Script, ScriptedEngine, ScriptedShape, ScriptFile
from twinpath.gateway import Launcher, LocalLauncher, ProcessLauncher, Replica, WatchdogLimits
from twinpath.types import Event, FinishEvent, Request, SamplingParams, TokensEvent

#: For every wait of a test: a bound that only a hang reaches.
TIMEOUT_S = 30.0
#: Quick eyes, so that a hang costs a test a second.
QUICK = WatchdogLimits(silent_s=1.5, stuck_s=1.0, check_s=0.05, backoff_s=0.01)

SCRIPT = ScriptFile(
    engine=ScriptedShape(layers=4),
    scripts=(
        Script(match="slow", text="x" * 3000, step_ms=2),
        Script(match="hang", text="abcdef", hang_at=3),
        Script(match="raise", text="abcdef", raise_at=3),
        Script(match="fail", text="abcdef", fail_at=3),
        Script(match="crash", text="abcdef", crash_at=3),
        Script(match="kill", text="abcdef", kill_at=3),
        Script(match="stopped", text="abcdef", stop_at=3),
    ),
    default=Script(text="hello"),
)


def make_request(request_id: str, prompt: str, max_tokens: int = 4000) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=(END_ID,))
    return Request(request_id=request_id, prompt_ids=list(prompt.encode()), sampling=sampling)


def local_launcher(script: ScriptFile = SCRIPT, config: SchedulerConfig | None = None) -> LocalLauncher:
    return LocalLauncher(lambda: ScriptedEngine(script), config)


def process_launcher(folder: Path, script: ScriptFile = SCRIPT) -> ProcessLauncher:
    path = folder / "script.json"
    path.write_bytes(msgspec.json.encode(script))
    return ProcessLauncher(EngineConfig(model_path=path, kind="scripted"), SchedulerConfig())


@asynccontextmanager
async def running(launcher: Launcher, **settings: object) -> AsyncIterator[Replica]:
    """A started replica, stopped at the end, with its whole life under the timeout."""
    replica = Replica(launcher, limits=QUICK, **settings)  # type: ignore[arg-type]
    async with asyncio.timeout(TIMEOUT_S):
        await replica.start()
        try:
            yield replica
        finally:
            await replica.stop()


async def ask(replica: Replica, request: Request) -> list[Event]:
    return [event async for event in replica.generate(request)]


def text_of(events: list[Event]) -> str:
    return bytes(t for e in events if isinstance(e, TokensEvent) for t in e.token_ids if t != END_ID).decode()


def assert_one_terminal_event(events: list[Event]) -> None:
    assert [isinstance(event, TokensEvent) for event in events] == [True] * (len(events) - 1) + [False]


async def assert_serves(replica: Replica, request_id: str) -> None:
    events = await ask(replica, make_request(request_id, "anything"))
    assert text_of(events) == "hello" and isinstance(events[-1], FinishEvent)


async def until(condition: object) -> None:
    """Wait for something that no event tells: the test's timeout bounds it."""
    assert callable(condition)
    with suppress(asyncio.TimeoutError):
        while not condition():
            await asyncio.sleep(0.005)
