"""Promises learn from what came of them."""

from __future__ import annotations

import pytest

from scheduler.stepping import make_request
from twinpath.kv import PrefixKeys
from twinpath.scheduler.cost import CostModel
from twinpath.scheduler.forecast import Forecast
from twinpath.scheduler.lanes import LanePlanner, LaneSettings
from twinpath.scheduler.sequence import Lane, Sequence
from twinpath.types import Promise


def make_forecast() -> Forecast:
    cost = CostModel()
    return Forecast(LanePlanner(LaneSettings(), cost, 4, 256), cost, 256)


def outcome(forecast: Forecast, order: int, num_prompt: int, factor: float, lane: Lane = Lane.FAST) -> float:
    """Promise 100 ms of work, see it take `factor` times as long; the promise."""
    request = make_request(f"r{order}", b"x" * num_prompt, arrival_s=10.0)
    sequence = Sequence(request, order, 8, PrefixKeys(16, ""))
    sequence.lane = lane
    predicted_ms = forecast.predict_ms(sequence, 10.0, [], 100.0, 0.0)
    sequence.promise = Promise(lane, predicted_ms)
    forecast.note_first_token(sequence, 10.0 + 0.1 * factor)
    return predicted_ms


def test_the_first_outcome_of_a_kind_is_believed_and_later_ones_are_averaged() -> None:
    forecast = make_forecast()
    assert outcome(forecast, 0, 64, 1.5) == pytest.approx(100.0)
    assert outcome(forecast, 1, 64, 1.5) == pytest.approx(150.0)
    promised = [outcome(forecast, 2 + n, 64, 1.0) for n in range(40)]
    assert promised[0] == pytest.approx(150.0) and promised[-1] == pytest.approx(100.0, rel=0.01)


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
    forecast.predict_ms(sequence, 0.0, [], 100.0, 0.0)
    forecast.forget(sequence)
    forecast.note_first_token(sequence, 5.0)
    assert not forecast.outcomes
