"""When a request's first token comes, said at its arrival and held against what came."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from twinpath.scheduler.cost import CostModel, StepShape, prefill_context
from twinpath.scheduler.rollout import work_ms
from twinpath.scheduler.sequence import Lane, Sequence

#: Outcomes that a bias is the median of: one overtaken by others, or lucky, does not move it.
_NUM_OF_BIAS = 25
_ALL_WELL = 0.0
#: Outcomes kept for whoever asks how good the promises are.
_NUM_KEPT = 1024
#: How long arrivals of the FAST lane are remembered, about; and for how long none is assumed before the first.
_LOAD_S = 30.0
_LOAD_PRIOR_S = 5.0
#: Share of the time for prefill that FAST requests to come are expected to take at most.
_MOST_LOAD = 0.8


@dataclass(frozen=True, slots=True)
class Outcome:
    """One promise and what became of it."""

    lane: Lane
    predicted_ms: float
    actual_ms: float


#: (lane, bits of the number of tokens to compute, streams beside it)
_Kind = tuple[Lane, int, int]
#: More streams than so many are alike.
_MOST_COMPANY = 4


class _Bias:
    """The median of the last logarithms, and of one that says that all is well."""

    __slots__ = ("_last", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._last: deque[float] = deque(maxlen=_NUM_OF_BIAS)

    def follow(self, ratio: float) -> None:
        self._last.append(ratio)
        ordered = sorted([*self._last, _ALL_WELL])
        middle = len(ordered) // 2
        self.value = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class _Load:
    """Milliseconds of work that come in a millisecond, forgetting what was long ago."""

    __slots__ = ("_first_s", "_last_s", "_sum_ms")

    def __init__(self) -> None:
        self._sum_ms = 0.0
        self._first_s = self._last_s = -1.0

    def add(self, work_ms: float, now_s: float) -> None:
        if self._first_s < 0.0:
            self._first_s = self._last_s = now_s
        self._sum_ms = self._sum_ms * math.exp((self._last_s - now_s) / _LOAD_S) + work_ms
        self._last_s = now_s

    def per_ms(self, now_s: float) -> float:
        faded = math.exp((self._last_s - now_s) / _LOAD_S)
        seen_s = _LOAD_S * (1.0 - math.exp((self._first_s - now_s) / _LOAD_S)) + _LOAD_PRIOR_S
        return self._sum_ms * faded / (seen_s * 1e3)


class Forecast:
    """From the steps to come, as a `Rollout` says, to a promise.

    Who comes later and goes first is not known: FLEX makes room for as much FAST work as came of late. What else is
    left out (time between steps, on the way) is on average in a bias that follows the outcomes of requests like this
    one, by lane, size and company.
    """

    def __init__(self, cost: CostModel, max_step_tokens: int) -> None:
        self._cost = cost
        self._max_step_tokens = max_step_tokens
        self._biases: dict[_Kind, _Bias] = {}
        self._of_lane = {lane: _Bias() for lane in Lane}
        self._fast_load = _Load()
        self._raw: dict[int, tuple[float, _Kind]] = {}
        self.outcomes: deque[Outcome] = deque(maxlen=_NUM_KEPT)

    def prefill_ms(self, start: int, num_rows: int) -> float:
        """Of rows [start, start + num_rows) alone on the engine, in chunks of the largest size."""
        num_chunks = -(-num_rows // self._max_step_tokens)
        context = prefill_context(start, num_rows)
        shape = StepShape(num_prefill=-(-num_rows // num_chunks), prefill_context=context // num_chunks)
        return num_chunks * self._cost.predict(shape)

    def predict_ms(self, sequence: Sequence, now_s: float, num_streams: int, ahead_ms: float) -> float:
        """First token after arrival. `ahead_ms`: until then, by what is known now."""
        if sequence.lane is Lane.FAST:
            self._fast_load.add(work_ms(self._cost, 0, sequence.num_uncached), now_s)
        else:
            # In full, not by the share of time that prefill has beside streams: where FAST prefill runs one stream less
            # does, and its share is larger.
            ahead_ms /= 1.0 - min(self._fast_load.per_ms(now_s), _MOST_LOAD)
        raw_ms = (now_s - sequence.arrival_s) * 1e3 + ahead_ms
        kind = (sequence.lane, sequence.num_uncached.bit_length(), min(num_streams, _MOST_COMPANY))
        self._raw[sequence.order] = raw_ms, kind
        return raw_ms * math.exp(self._biases.get(kind, self._of_lane[sequence.lane]).value)

    def note_first_token(self, sequence: Sequence, now_s: float) -> None:
        raw, promise = self._raw.pop(sequence.order, None), sequence.promise
        actual_ms = (now_s - sequence.arrival_s) * 1e3
        if raw is None or promise is None or promise.predicted_ttft_ms is None or actual_ms <= 0.0:
            return
        self.outcomes.append(Outcome(sequence.lane, promise.predicted_ttft_ms, actual_ms))
        raw_ms, kind = raw
        ratio = math.log(actual_ms / max(raw_ms, 1e-3))
        self._of_lane[sequence.lane].follow(ratio)
        self._biases.setdefault(kind, _Bias()).follow(ratio)

    def forget(self, sequence: Sequence) -> None:
        """It ended without a token."""
        self._raw.pop(sequence.order, None)
