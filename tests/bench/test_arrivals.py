from __future__ import annotations

import asyncio

import pytest

from twinpath.bench import RequestRecord, poisson_arrivals, run_closed, run_open


async def test_closed_loop_keeps_its_number_of_clients_and_sends_each_request_once() -> None:
    running, most = 0, 0

    async def send(index: int, intended_s: float) -> RequestRecord:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(1 + index % 3):
            await asyncio.sleep(0)
        running -= 1
        return RequestRecord(index=index, intended_s=intended_s)

    records = await run_closed(send, num_clients=4, num_requests=23)
    assert [record.index for record in records] == list(range(23))
    assert most == 4


async def test_open_loop_keeps_intended_times_while_the_server_stalls() -> None:
    """Every request waits for the last one to be sent: a closed or semi-open loop would never end here."""
    now, last_sent = 100.0, asyncio.Event()
    sent_at: dict[int, float] = {}

    async def sleep(delay_s: float) -> None:
        nonlocal now
        now += delay_s
        await asyncio.sleep(0)

    async def send(index: int, intended_s: float) -> RequestRecord:
        sent_at[index] = now
        if index == 3:
            last_sent.set()
        await last_sent.wait()
        return RequestRecord(index=index, intended_s=intended_s, sent_s=sent_at[index])

    records = await run_open(send, [0.5, 1.0, 1.25, 4.0], clock=lambda: now, sleep=sleep)
    assert [record.intended_s for record in records] == [100.5, 101.0, 101.25, 104.0]


async def test_open_loop_counts_the_clients_own_lag() -> None:
    now = 0.0

    async def oversleep(delay_s: float) -> None:
        nonlocal now
        now += delay_s + 2.0

    async def send(index: int, intended_s: float) -> RequestRecord:
        return RequestRecord(index=index, intended_s=intended_s, sent_s=now)

    records = await run_open(send, [1.0, 2.0], clock=lambda: now, sleep=oversleep)
    assert [record.intended_s for record in records] == [1.0, 2.0]
    assert [record.send_lag_ms for record in records] == [2000.0, 1000.0]


def test_poisson_arrivals_repeat_with_their_seed_and_have_their_rate() -> None:
    arrivals = poisson_arrivals(50.0, 5000, seed=1)
    assert arrivals == poisson_arrivals(50.0, 5000, seed=1) != poisson_arrivals(50.0, 5000, seed=2)
    assert arrivals == sorted(arrivals)
    gaps = [b - a for a, b in zip([0.0, *arrivals], arrivals, strict=False)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert variance**0.5 / mean == pytest.approx(1.0, rel=0.05), "exponential gaps have a coefficient of variation of 1"


def test_poisson_refuses_a_rate_of_zero() -> None:
    with pytest.raises(ValueError, match="positive"):
        poisson_arrivals(0.0, 1, seed=0)
