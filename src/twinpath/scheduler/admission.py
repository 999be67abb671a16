"""Who comes in on what promise: lane and prediction at arrival, and refusals of what cannot be met."""

from __future__ import annotations

from collections.abc import Collection

from twinpath.contracts import Clock
from twinpath.scheduler.answer import shed
from twinpath.scheduler.forecast import Forecast
from twinpath.scheduler.outlook import Outlook
from twinpath.scheduler.sequence import Sequence
from twinpath.scheduler.step import Step
from twinpath.types import AdmittedEvent, Event, Promise

#: Whoever waits so long hears its promise before its first token: proxies and people want to know.
_TELL_ABOVE_MS = 1000.0
#: Retrying before this much has been worked off helps nobody.
_LEAST_RETRY_S = 0.05


class Admission:
    """Puts arrivals into their lane's queue with a promise. `shed`: refuse what is predicted to miss its target."""

    def __init__(self, outlook: Outlook, forecast: Forecast, clock: Clock, *, shed: bool) -> None:
        self.outlook = outlook
        self._forecast = forecast
        self._roster = outlook.roster
        self._clock = clock
        self._sheds = shed
        self.num_shed = 0

    def admit(self, sequence: Sequence, num_cached: int, outstanding: Collection[Step]) -> list[Event]:
        """`num_cached`: prompt tokens whose KV is there. The events say the promise when the wait is long."""
        sequence.num_uncached -= num_cached
        sequence.lane = self.outlook.planner.lane_of(sequence.num_uncached)
        sequence.prefill_ms = self._forecast.prefill_ms(num_cached, sequence.num_uncached)
        self._roster.add(sequence)
        predicted_ms = self._predict_ms(sequence, outstanding)
        sequence.promise = Promise(sequence.lane, predicted_ms)
        if self._sheds and _misses_target(sequence, predicted_ms):
            return self._shed(sequence, predicted_ms)
        return [AdmittedEvent(sequence.request_id, sequence.promise)] if predicted_ms >= _TELL_ABOVE_MS else []

    def shed_late(self) -> list[Event]:
        """Refuse those that wait and would be late even if they began now and had the engine to themselves."""
        if not self._sheds or not self._roster.num_waiting:
            return []
        now_s = self._clock()
        events: list[Event] = []
        for sequence in self._roster.all_waiting():
            reached_ms = (now_s - sequence.arrival_s) * 1e3 + sequence.prefill_ms
            if sequence.waited_s is None and _misses_target(sequence, reached_ms):
                events += self._shed(sequence, reached_ms)
        return events

    def _predict_ms(self, sequence: Sequence, outstanding: Collection[Step]) -> float:
        now_s = self._clock()
        busy_ms = sum(step.predicted_ms for step in outstanding)
        if outstanding:
            busy_ms = max(busy_ms - (now_s - next(iter(outstanding)).planned_s) * 1e3, 0.0)
        ahead_ms = busy_ms + self.outlook.first_token_ms(sequence, now_s)
        num_streams = sum(other.started for other in self._roster.running)
        return self._forecast.predict_ms(sequence, now_s, num_streams, ahead_ms)

    def _shed(self, sequence: Sequence, predicted_ms: float) -> list[Event]:
        self.num_shed += 1
        self._roster.end(sequence)
        self._forecast.forget(sequence)
        assert sequence.promise is not None
        admitted = AdmittedEvent(sequence.request_id, sequence.promise)
        return [admitted, shed(sequence, predicted_ms, _retry_after_s(sequence, predicted_ms))]


def _misses_target(sequence: Sequence, predicted_ms: float) -> bool:
    return sequence.ttft_target_ms is not None and predicted_ms > sequence.ttft_target_ms


def _retry_after_s(sequence: Sequence, predicted_ms: float) -> float:
    """Until enough of the queue is worked off for the same request to be met; 0: its own prefill takes too long."""
    target_ms = sequence.ttft_target_ms
    if target_ms is None or sequence.prefill_ms > target_ms:
        return 0.0
    return max((predicted_ms - target_ms) / 1e3, _LEAST_RETRY_S)
