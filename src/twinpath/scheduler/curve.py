"""What a step takes on an engine that runs rows in captured sizes: a curve over rows instead of a line.

A GPU's step costs the weights it reads until some hundred rows, is padded up to the next captured size, and attends
over a long context at one rate for a few rows and at another for many. None of that is a line through one knee.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from twinpath.scheduler.cost import Coefficients, CostModel, StepShape

#: Rows up to which steps are captured, where the engine does not say.
_CAPTURED_ROWS = 512
#: Attention of fewer rows takes as long as of so many: it waits for keys, not for arithmetic.
_LEAST_ROWS = 48
#: Tokens attended to for each row, below which a step says what rows cost, and above which what attention costs.
_SHORT_CONTEXT = 1024
_LONG_CONTEXT = 4096


class CurvedCost(CostModel):
    """A `CostModel` whose prefill and mixed steps follow measured points; decode steps keep the linear model.

    Points are (rows, ms) of a whole forward at short context, decode rows included; the last two give the slope beyond.
    Rates are milliseconds for each row and token attended to, over all layers.
    """

    def __init__(
        self,
        coefficients: Coefficients,
        points: Sequence[tuple[int, float]],
        few_rate: float,
        many_rate: float,
        chunk_grain: int = 1,
    ) -> None:
        """`chunk_grain`: see `EngineInfo`; attention of fewer rows goes at the rate of few."""
        super().__init__(coefficients)
        self._chunk_grain = max(chunk_grain, _CAPTURED_ROWS + 1)
        self._sizes = [rows for rows, _ in points]
        self._times = [ms for _, ms in points]
        self._few_rate, self._many_rate = few_rate, many_rate

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of the points."""
        return tuple(self._sizes)

    def fit(self, samples: Sequence[tuple[StepShape, float]]) -> None:
        """Decode steps fit the linear part, short contexts the points (unmeasured ones move with their neighbours),
        long contexts the rates."""
        whole = [(shape, ms) for shape, ms in samples if shape.layer_share == 1.0 and ms > 0.0]
        super().fit([(shape, ms) for shape, ms in whole if not shape.num_prefill])
        self._fit_points([(s, ms) for s, ms in whole if s.num_prefill and _mean_context(s) <= _SHORT_CONTEXT])
        long = [(s, ms) for s, ms in whole if s.num_prefill and _mean_context(s) >= _LONG_CONTEXT]
        for is_few in (True, False):
            rates = [
                max(ms - self._rows_ms(_num_rows(s)), 0.0) / _attended(s)
                for s, ms in long
                if (_num_rows(s) < self._chunk_grain) is is_few
            ]
            if rates and is_few:
                self._few_rate = float(np.median(rates))
            elif rates:
                self._many_rate = float(np.median(rates))

    def _fit_points(self, samples: Sequence[tuple[StepShape, float]]) -> None:
        ratios: dict[int, list[float]] = {}
        for shape, elapsed_ms in samples:
            index = bisect_left(self._sizes, _num_rows(shape))
            if index < len(self._sizes):
                ratios.setdefault(index, []).append(elapsed_ms / self._base(shape))
        if not ratios:
            return
        measured = sorted(ratios)
        moved = np.interp(range(len(self._sizes)), measured, [float(np.median(ratios[i])) for i in measured])
        times = np.array(self._times) * moved
        self._times = np.maximum.accumulate(times).tolist()  # More rows never take less.

    def _base(self, shape: StepShape) -> float:
        if not shape.num_prefill:
            return super()._base(shape)
        return max(self.coefficients.plan + shape.layer_share * self._layers_ms(shape), 1e-6)

    def _layers_ms(self, shape: StepShape) -> float:
        if not shape.num_prefill:
            return super()._layers_ms(shape)
        num_rows = _num_rows(shape)
        rate = self._few_rate if num_rows < self._chunk_grain else self._many_rate
        return self._rows_ms(num_rows) + rate * _attended(shape)

    def _least_row_ms(self, start: int, num_rows: int) -> float:
        sizes, times = self._sizes, self._times
        beyond = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return (
            min([beyond, *[ms / rows for rows, ms in zip(sizes, times, strict=True)]])
            + min(self._few_rate, self._many_rate) * start
        )

    def _rows_ms(self, num_rows: int) -> float:
        """Padded to the next point; beyond the last along the last two."""
        sizes, times = self._sizes, self._times
        index = bisect_left(sizes, num_rows)
        if index == len(sizes):
            slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
            return times[-1] + slope * (num_rows - sizes[-1])
        if num_rows <= _CAPTURED_ROWS or not index:
            return times[index]
        share = (num_rows - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
        return times[index - 1] + share * (times[index] - times[index - 1])


def _num_rows(shape: StepShape) -> int:
    return shape.num_decode + shape.num_prefill


def _attended(shape: StepShape) -> float:
    """Tokens attended to by prefill rows, few rows counted as `_LEAST_ROWS`."""
    return shape.prefill_context * max(1.0, _LEAST_ROWS / shape.num_prefill)


def _mean_context(shape: StepShape) -> float:
    return shape.prefill_context / shape.num_prefill


#: An 8B model of 16-bit weights on one H200.
H200_POINTS = (
    (16, 5.0), (32, 5.2), (64, 5.4), (128, 5.8), (256, 7.8), (512, 13.0),
    (1024, 25.0), (2048, 48.0), (4096, 96.0), (8192, 192.0),
)  # fmt: skip
H200_FEW_RATE, H200_MANY_RATE = 1.3e-6, 0.9e-6
