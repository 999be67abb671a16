"""When a request's first token comes, said at its arrival and held against what came."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from twinpath.scheduler.cost import CostModel, StepShape, prefill_context
from twinpath.scheduler.lanes import LanePlanner
from twinpath.scheduler.sequence import Lane, Sequence

#: A bias moves at least this far towards each new error (of logarithms), and more while it has seen few.
_GAIN = 0.15
#: Outcomes kept for whoever asks how good the promises are.
_NUM_KEPT = 1024
#: Share of a period below which prefill is not planned for, though it may get less for a while.
_LEAST_SHARE = 0.05


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
    """A running mean of logarithms that forgets."""

    __slots__ = ("_num_seen", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._num_seen = 0

    def follow(self, ratio: float) -> None:
        self._num_seen += 1
        self.value += max(_GAIN, 1 / self._num_seen) * max(-1.0, min(1.0, ratio - self.value))


class Forecast:
    """Queue ahead, own prefill and the step that runs, stretched by the decode steps in between.

    Who comes later and goes first, and who ends meanwhile, is not known, nor how whole rows and layers fill a period:
    on average that is in a bias which follows the outcomes of requests like this one, by lane, size and company.
    """

    def __init__(self, planner: LanePlanner, cost: CostModel, max_step_tokens: int) -> None:
        self._planner = planner
        self._cost = cost
        self._max_step_tokens = max_step_tokens
        self._biases: dict[_Kind, _Bias] = {}
        self._of_lane = {lane: _Bias() for lane in Lane}
        self._raw: dict[int, tuple[float, _Kind]] = {}
        self.outcomes: deque[Outcome] = deque(maxlen=_NUM_KEPT)

    def prefill_ms(self, start: int, num_rows: int) -> float:
        """Of rows [start, start + num_rows) alone on the engine, in chunks of the largest size."""
        num_chunks = -(-num_rows // self._max_step_tokens)
        context = prefill_context(start, num_rows)
        shape = StepShape(num_prefill=-(-num_rows // num_chunks), prefill_context=context // num_chunks)
        return num_chunks * self._cost.predict(shape)

    def predict_ms(
        self, sequence: Sequence, now_s: float, decode: list[Sequence], work_ms: float, busy_ms: float
    ) -> float:
        """First token after arrival. `work_ms`: prefill before it and its own; `busy_ms`: left of planned steps."""
        share = 1.0
        if decode:
            alone_ms = self._planner.alone_ms(decode)
            slack_ms = max(self._planner.slack_ms(decode, alone_ms), 0.0)
            share = max(slack_ms / max(alone_ms + slack_ms, 1e-9), _LEAST_SHARE)
        raw_ms = (now_s - sequence.arrival_s) * 1e3 + busy_ms + work_ms / share
        kind = (sequence.lane, sequence.num_uncached.bit_length(), min(len(decode), _MOST_COMPANY))
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


def remaining_ms(sequences: Iterable[Sequence]) -> float:
    """Prefill that running sequences still have before them, by rows (layers of a chunk are not counted)."""
    return sum(
        sequence.prefill_ms * (sequence.num_prompt - sequence.num_computed) / max(sequence.num_uncached, 1)
        for sequence in sequences
        if not sequence.started
    )
