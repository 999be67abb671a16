"""Real engine processes that crash, stop, hang and lose their gateway."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from gateway.asking import (
    SCRIPT,
    TIMEOUT_S,
    ask,
    assert_one_terminal_event,
    assert_serves,
    make_request,
    process_launcher,
    running,
    text_of,
    until,
)
from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.errors import UserError
from twinpath.gateway import ProcessLauncher, Replica, ReplicaState
from twinpath.types import ErrorEvent, Event, TokensEvent


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_serves_and_leaves_no_process_and_no_descriptor(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    for _ in range(3):
        async with running(process_launcher(tmp_path)) as replica:
            pid = replica.pid
            assert pid is not None and replica.info is not None and replica.info.facts["engine"] == "scripted"
            await assert_serves(replica, "r")
        assert not psutil.pid_exists(pid)
    if sys.platform == "linux":
        await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 1)  # The event loop's own may come late.


async def test_an_engine_that_expects_requests_serves_them_and_may_wait_in_vain(tmp_path: Path) -> None:
    async with running(process_launcher(tmp_path)) as replica:
        for number in range(5):
            replica.expect()
            await assert_serves(replica, f"r{number}")
            replica.expect()
        before = replica.gauges
        replica.expect()
        await until(lambda: replica.gauges is not before)  # A heartbeat later.
        assert replica.gauges.steps and replica.gauges.prefix_queries == 5 * len(
            make_request("r", "anything").prompt_ids
        )
    replica.expect()  # It is gone.


@pytest.mark.parametrize(
    ("cue", "ending"),
    [
        ("crash", "exit code 17"),
        ("kill", "SIGKILL"),
        ("stopped", "it was silent"),
        ("hang", "it made no progress"),
        ("raise", "scripted exception"),
    ],
)
async def test_fault_mid_stream_is_an_error_event_and_the_next_process_serves(
    tmp_path: Path, cue: str, ending: str
) -> None:
    async with running(process_launcher(tmp_path)) as replica:
        first_pid = replica.pid
        bystander = asyncio.create_task(ask(replica, make_request("bystander", "slow")))
        await until(lambda: replica.num_running == 1)
        events = await ask(replica, make_request("bad", cue))
        for told in (events, await bystander):
            assert_one_terminal_event(told)
            assert isinstance(told[-1], ErrorEvent) and ending in told[-1].message
        assert text_of(events) == "abc"
        await assert_serves(replica, "next")
        assert replica.pid != first_pid and first_pid is not None and is_gone(first_pid)
        assert replica.num_inflight == 0 and replica.num_restarts == 1


async def test_two_hundred_requests_cancelled_at_random_three_kills_and_three_stops(tmp_path: Path) -> None:
    """Each request ends once: with its answer, an error of its own, or because its reader left."""
    chance = random.Random(1)

    async def one(replica: Replica, number: int, patience: int | None) -> list[Event]:
        events: list[Event] = []
        stream = replica.generate(make_request(f"r{number}", "slow", max_tokens=20 + number % 40))
        async for event in stream:
            events.append(event)
            if len(events) == patience and isinstance(event, TokensEvent):
                await stream.aclose()
        return events

    async with running(process_launcher(tmp_path)) as replica:
        tasks = []
        for first, fault in zip(range(0, 210, 30), [signal.SIGKILL, signal.SIGSTOP] * 3 + [None], strict=True):
            for number in range(first, first + 30):
                patience = chance.choice([None, chance.randrange(1, 40)])
                tasks.append((patience, asyncio.create_task(one(replica, number, patience))))
            await until(lambda: replica.num_running > 5)
            if fault is not None:
                pid = replica.pid
                assert pid is not None
                os.kill(pid, fault)
                await until(lambda: replica.state is ReplicaState.READY and replica.pid != pid)  # noqa: B023
        for patience, task in tasks:
            events = await task
            assert all(isinstance(event, TokensEvent) for event in events[:-1])
            assert len(events) == patience or not isinstance(events[-1], TokensEvent)
        await until(lambda: replica.num_inflight == 0)
        await assert_serves(replica, "last")
        await until(lambda: replica.gauges.running == replica.gauges.pages_used == 0 < replica.gauges.pages_total)
        assert replica.num_restarts == 6


async def test_a_wrong_model_fails_the_start_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"scripts": 7}')
    replica = Replica(ProcessLauncher(EngineConfig(model_path=path, kind="scripted"), SchedulerConfig()))
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(UserError) as failure:
            await replica.start()
        assert "broken.json is not valid" in str(failure.value) and "\n" not in str(failure.value)
        await replica.stop()


@pytest.mark.parametrize("busy", [False, True])
def test_worker_ends_when_its_gateway_is_killed(tmp_path: Path, busy: bool) -> None:
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode(SCRIPT))
    gateway = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(script), "hang" if busy else "hi"], stdout=subprocess.PIPE, text=True
    )
    assert gateway.stdout is not None
    pid = int(gateway.stdout.readline())
    assert psutil.pid_exists(pid)
    gateway.kill()
    gateway.wait()
    gateway.stdout.close()
    worker = psutil.Process(pid) if psutil.pid_exists(pid) else None
    if worker is not None:
        psutil.wait_procs([worker], timeout=TIMEOUT_S)
    assert is_gone(pid)


GATEWAY = """
import asyncio, sys
from pathlib import Path
from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.gateway import ProcessLauncher, Replica
from twinpath.types import Request, SamplingParams

async def main():
    replica = Replica(ProcessLauncher(EngineConfig(model_path=Path(sys.argv[1]), kind="scripted"), SchedulerConfig()))
    await replica.start()
    prompt = list(sys.argv[2].encode())
    request = Request(request_id="r", prompt_ids=prompt, sampling=SamplingParams(max_tokens=4, temperature=0.0))
    async for event in replica.generate(request):
        if not hasattr(event, "token_ids") or event.token_ids == [99]:
            break
    print(replica.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
