"""What holds up a loop is found and named, and what does not is left alone."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable

import pytest

from twinpath.telemetry.stalls import Stall, StallTracer

#: Well above what a busy machine does to a thread that sleeps 2 ms.
STALL_S = 0.08


def block_by_sleeping() -> None:
    time.sleep(STALL_S)


def block_in_bytecode() -> None:
    end_s = time.thread_time() + STALL_S
    while time.thread_time() < end_s:
        pass


def block_holding_the_lock() -> None:
    """One C call that does not let other threads run."""
    pattern, end_s = re.compile(r"(?:a|a)*b"), time.thread_time() + STALL_S
    length = 8
    while time.thread_time() < end_s:
        length += 1
        pattern.match("a" * length)


def named(tracer: StallTracer, function: Callable[[], None]) -> list[Stall]:
    return [stall for stall in tracer.stalls if any(frame.endswith(function.__name__) for frame in stall.frames)]


@pytest.mark.parametrize("block", [block_by_sleeping, block_in_bytecode, block_holding_the_lock])
def test_the_frame_that_holds_up_an_event_loop_is_named(block: Callable[[], None]) -> None:
    tracer = StallTracer(threshold_s=STALL_S / 4)

    async def run() -> None:
        tracer.watch_event_loop("http", asyncio.get_running_loop())
        tracer.start()
        await asyncio.sleep(0.02)
        block()
        await asyncio.sleep(0.02)
        tracer.stop()

    asyncio.run(run())
    [stall, *_] = named(tracer, block)
    assert stall.loop == "http" and tracer.num_stalls >= 1 and tracer.worst_s >= STALL_S / 4
    if block is block_by_sleeping:
        assert stall.cpu_s < STALL_S / 2


def test_a_loop_of_our_own_is_late_only_while_it_works() -> None:
    tracer = StallTracer(threshold_s=STALL_S / 4)

    def loop() -> None:
        beat = tracer.watch_beat("engine")
        beat.end()
        wait_for_work()
        beat.begin()
        block_by_sleeping()
        beat.end()
        wait_for_work()

    def wait_for_work() -> None:
        time.sleep(STALL_S)

    thread = threading.Thread(target=loop)
    tracer.start()
    thread.start()
    thread.join()
    tracer.stop()
    assert len(named(tracer, block_by_sleeping)) == 1 and not named(tracer, wait_for_work)
