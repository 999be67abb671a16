"""What stays free of a period, so that nearly all gaps between tokens keep to their budget."""

from __future__ import annotations

from twinpath.scheduler.cost import StepShape

#: Of gaps beside prefill at most this share may be longer than the budget.
_LATE_SHARE = 0.01
#: The reserve grows by this much of the budget with each late gap, and shrinks in balance with `_LATE_SHARE`.
_GAIN = 0.02
_MOST = 0.15


class Reserve:
    """Follows gaps as the engine measured them. Its steps are even, one kind beside another, but each kind is off its
    prediction by its own few per cent: quantiles of all steps' errors would keep twice as much."""

    def __init__(self) -> None:
        #: Of the budget, not given to prefill.
        self.share = 0.0
        self._elapsed_ms = 0.0
        self._has_prefill = False

    def note(self, shape: StepShape, elapsed_ms: float, budget_ms: float | None) -> None:
        """A step is done; one with decode rows ends a gap. `budget_ms`: of the gap, None without streams."""
        self._elapsed_ms += elapsed_ms
        self._has_prefill |= shape.num_prefill > 0
        if not shape.num_decode:
            return
        if self._has_prefill and budget_ms is not None:
            is_late = self._elapsed_ms > budget_ms
            moved = self.share + _GAIN * ((1.0 if is_late else 0.0) - _LATE_SHARE)
            self.share = min(max(moved, 0.0), _MOST)
        self._elapsed_ms, self._has_prefill = 0.0, False
