"""When requests start: a closed loop of clients, or an open loop of intended times that never waits for answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from twinpath.bench.records import RequestRecord

#: Sends request `index`, which was meant to leave at `intended_s`, and returns its record.
Send = Callable[[int, float], Awaitable[RequestRecord]]


def poisson_arrivals(rate_per_s: float, num_requests: int, seed: int) -> list[float]:
    """Seconds from the start at which a Poisson process of the given rate sends each request.

    The same for the same seed.
    """
    if rate_per_s <= 0:
        raise ValueError(f"rate must be positive, got {rate_per_s}")
    source, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(num_requests):
        now += source.expovariate(rate_per_s)
        arrivals.append(now)
    return arrivals


async def run_closed(
    send: Send, *, num_clients: int, num_requests: int, clock: Callable[[], float] = time.perf_counter
) -> list[RequestRecord]:
    """`num_clients` clients, each sending its next request when its last one ended. Records in index order.

    A closed loop slows down with the server, so it measures capacity and batch speed, not the latency of users who
    do not wait for each other.
    """
    indices = iter(range(num_requests))
    records: list[RequestRecord] = []

    async def client() -> None:
        for index in indices:
            records.append(await send(index, clock()))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(num_clients, num_requests)):
            group.create_task(client())
    return sorted(records, key=lambda record: record.index)


async def run_open(
    send: Send,
    arrivals_s: Sequence[float],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[RequestRecord]:
    """Start request i at `arrivals_s[i]` after the start, however many are still running. Records in index order.

    A late client does not shift the plan: the request keeps its intended time and the lag counts.
    """
    start = clock()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for index, offset in enumerate(arrivals_s):
            intended = start + offset
            if (delay := intended - clock()) > 0:
                await sleep(delay)
            tasks.append(group.create_task(_sent(send, index, intended)))
    return [task.result() for task in tasks]


async def _sent(send: Send, index: int, intended_s: float) -> RequestRecord:
    return await send(index, intended_s)
