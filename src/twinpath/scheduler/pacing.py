"""How far apart the tokens of streams came, and what must stay free of a period for nearly all to be in time."""

from __future__ import annotations

from collections import deque

#: Of gaps beside prefill at most this share may be longer than the budget.
_LATE_SHARE = 0.01
#: The reserve grows by this much of the budget with each late gap, and shrinks in balance with `_LATE_SHARE`.
_GAIN = 0.03
_FIRST_RESERVE, _MOST_RESERVE = 0.15, 0.5
#: Of the budget, what a stream's token may take inside the engine: the rest is its way to the client.
_ENGINE_SHARE = 0.95
#: The idle gap is the median of so many.
_NUM_IDLE = 63
#: So many times the step: no stream ran meanwhile.
_SILENCE = 5.0
#: A decode step on half of the cores, beside a chunk, takes so many times as long until it was seen.
_FIRST_BESIDE = 1.8


class Pacing:
    """Follows measured gaps instead of trusting predictions: a quantile of the first kind, a median of the second."""

    def __init__(self) -> None:
        #: Of the budget, not given to prefill.
        self.reserve = _FIRST_RESERVE
        #: Idle gaps / what the cost model says of their steps before corrections.
        self._idle_ratios: deque[float] = deque(maxlen=_NUM_IDLE)
        self._idle_ratio: float | None = None
        #: Decode steps beside a chunk / the same of all steps.
        self._beside_ratios: deque[float] = deque(maxlen=_NUM_IDLE)
        self._beside_ratio: float | None = None
        self._decoded_s: float | None = None
        self._was_shared = False

    @property
    def idle_ratio(self) -> float | None:
        """Median idle gap / what the cost model says of the step; None: none was seen."""
        if self._idle_ratio is None and self._idle_ratios:
            self._idle_ratio = sorted(self._idle_ratios)[len(self._idle_ratios) // 2]
        return self._idle_ratio

    @property
    def beside_ratio(self) -> float:
        """Median step beside a chunk / what the cost model says of it alone."""
        if self._beside_ratio is None and self._beside_ratios:
            self._beside_ratio = sorted(self._beside_ratios)[len(self._beside_ratios) // 2]
        return self._beside_ratio or _FIRST_BESIDE

    def note_beside(self, ratio: float) -> None:
        """A step beside a chunk took so many times what the cost model says of it alone."""
        self._beside_ratios.append(ratio)
        self._beside_ratio = None

    def note_gap(self, now_s: float, budget_ms: float | None, base_ms: float) -> None:
        """A step with decode rows is done. `budget_ms`: of the period that it ends, None when it had no prefill;
        `base_ms`: what the cost model says of the step."""
        if self._decoded_s is not None:
            gap_ms = (now_s - self._decoded_s) * 1e3
            if budget_ms is not None:
                is_late = gap_ms > _ENGINE_SHARE * budget_ms
                moved = self.reserve + _GAIN * ((1.0 if is_late else 0.0) - _LATE_SHARE)
                self.reserve = min(max(moved, 0.0), _MOST_RESERVE)
            elif not self._was_shared and gap_ms < _SILENCE * base_ms:  # The first step after a slice is slower.
                self._idle_ratios.append(gap_ms / base_ms)
                self._idle_ratio = None
        self._decoded_s = now_s
        self._was_shared = budget_ms is not None
