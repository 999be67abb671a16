"""Promises learn from what came of them."""

from __future__ import annotations

import pytest

from scheduler.stepping import make_request
from twinpath.kv import PrefixKeys
from twinpath.scheduler.cost import CostModel
from twinpath.scheduler.forecast import Forecast
from twinpath.scheduler.sequence import Lane, Sequence
from twinpath.types import Promise


def make_forecast() -> Forecast:
    cost = CostModel()
    return Forecast(cost, 256)


def outcome(forecast: Forecast, order: int, num_prompt: int, factor: float, lane: Lane = Lane.FAST) -> float:
    """Promise 100 ms of work, see it take `factor` times as long; the promise. FLEX comes when other work is done."""
    now_s = 10.0 if lane is Lane.FAST else 1000.0
    request = make_request(f"r{order}", b"x" * num_prompt, arrival_s=now_s)
    sequence = Sequence(request, order, 8, PrefixKeys(16, ""))
    sequence.lane = lane
    predicted_ms = forecast.predict_ms(sequence, now_s, 0, 100.0)
    sequence.promise = Promise(lane, predicted_ms)
    forecast.note_first_token(sequence, now_s + 0.1 * factor)
    return predicted_ms


def test_one_outcome_is_half_believed_and_two_are_until_others_outnumber_them() -> None:
    forecast = make_forecast()
    assert [outcome(forecast, n, 64, 1.5) for n in range(3)] == pytest.approx([100.0, 100.0 * 1.5**0.5, 150.0])
    promised = [outcome(forecast, 3 + n, 64, 1.0) for n in range(40)]
    assert promised[0] == pytest.approx(150.0) and promised[-1] == pytest.approx(100.0)


def test_a_long_prompt_makes_room_for_as_much_short_work_as_came_of_late() -> None:
    """200 rows a second, 0.7 ms each, for a minute: a good seventh of the time goes to them."""
    forecast = make_forecast()
    for order in range(60):
        sequence = Sequence(make_request(f"r{order}", b"x" * 200), order, 8, PrefixKeys(16, ""))
        forecast.predict_ms(sequence, 1.0 + order, 0, 100.0)
    flex = Sequence(make_request("flex", b"x" * 64, arrival_s=61.0), 100, 8, PrefixKeys(16, ""))
    flex.lane = Lane.FLEX
    share = (200 * 0.7 + 200 * 201 / 2 * 2e-4) / 1000
    assert forecast.predict_ms(flex, 61.0, 0, 1000.0) == pytest.approx(1000.0 / (1 - share), rel=0.05)
    # Nothing came for a long time.
    flex.arrival_s = 1000.0
    assert forecast.predict_ms(flex, 1000.0, 0, 1000.0) == pytest.approx(1000.0)


def test_requests_of_another_size_or_lane_are_not_blamed() -> None:
    forecast = make_forecast()
    for order in range(10):
        outcome(forecast, order, 16, 2.0)
        outcome(forecast, 100 + order, 200, 1.0)
    assert outcome(forecast, 50, 16, 2.0) == pytest.approx(200.0, rel=0.01)
    assert outcome(forecast, 51, 200, 1.0) == pytest.approx(100.0, rel=0.01)
    assert outcome(forecast, 52, 200, 1.0, Lane.FLEX) == pytest.approx(100.0)


def test_one_wild_outcome_moves_a_promise_by_a_bounded_factor() -> None:
    forecast = make_forecast()
    for order in range(20):
        outcome(forecast, order, 64, 1.0)
    outcome(forecast, 30, 64, 1000.0)
    assert outcome(forecast, 31, 64, 1.0) < 100.0 * 1.2


def test_a_request_that_ends_without_a_token_is_forgotten() -> None:
    forecast = make_forecast()
    sequence = Sequence(make_request("r", b"x" * 64), 0, 8, PrefixKeys(16, ""))
    forecast.predict_ms(sequence, 0.0, 0, 100.0)
    forecast.forget(sequence)
    forecast.note_first_token(sequence, 5.0)
    assert not forecast.outcomes
