"""What a step will take: a linear model of its shape, fitted to measured steps and corrected while serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf

import msgspec
import numpy as np
from numpy.typing import NDArray

from twinpath.types import StepPlan

#: A correction moves this far towards each new ratio of measured to predicted time, of which no more counts than this
#: share of itself: a few late steps in many say nothing of the next (errors of first tokens fell from 8 to 6 %).
_GAIN = 0.1
_MOST_AT_ONCE = 0.2
#: But what was not seen for so many steps, or fewer times than this, is believed as it comes: the machine has another
#: speed by now, or had one while it was calibrated.
_STALE_STEPS = 256
_FEW = 4
#: A step this many times its prediction, or less than its inverse, is an outlier ...
_OUTLIER_RATIO = 2.5
#: ... unless this many in a row agree: then the machine has changed.
_OUTLIERS_IN_A_ROW = 4
#: A fit is done so often, each time without the steps that took so many times what the last one says.
_FIT_ROUNDS = 4
_LATE_RATIO = 1.25
#: Of the equations that hold each coefficient near its prior, relative to one step.
_PRIOR_WEIGHT = 0.03


class StepShape(msgspec.Struct, frozen=True, gc=False):
    """What a step's time depends on. Contexts are sums over rows of the tokens each attends to, itself included."""

    num_decode: int = 0
    decode_context: int = 0
    num_prefill: int = 0
    prefill_context: int = 0
    num_sampled: int = 0
    #: Layers run / all layers.
    layer_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Milliseconds, but for the knee; all except `plan` and `sampled_row` are for a forward through all layers."""

    #: Of any plan, however few its layers: planning, hand-over, start of the threads.
    plan: float
    #: Weights read once.
    forward: float
    decode_row: float
    #: The first `knee_rows` prefill rows of a step, and those beyond: a few rows ride almost free where reading weights
    #: is what takes time, and are dearer than many where arithmetic does.
    early_row: float
    prefill_row: float
    decode_token: float
    prefill_token: float
    #: Final norm, head and sampler of one row.
    sampled_row: float
    knee_rows: int = 32


#: All but the knee, in their order.
_FITTED = tuple(field.name for field in fields(Coefficients))[:-1]

#: Before anything was measured: of the order of a 135M model on two cores, and of an 8B model on one H200.
CPU_PRIOR = Coefficients(0.3, 4.0, 0.7, 0.7, 0.7, 2e-4, 2e-4, 0.5)
CUDA_PRIOR = Coefficients(0.1, 4.5, 0.01, 0.008, 0.024, 3.3e-5, 1e-6, 0.01, knee_rows=128)


def prefill_context(start: int, num_rows: int) -> int:
    """Tokens that rows [start, start + num_rows) attend to, summed."""
    return num_rows * start + num_rows * (num_rows + 1) // 2


def shape_of(plan: StepPlan, num_layers: int) -> StepShape:
    """The shape of a plan; a segment of one row counts as decode."""
    num_decode = decode_context = num_prefill = prefill_tokens = 0
    for start, length in zip(plan.starts.tolist(), plan.lengths.tolist(), strict=True):
        if length == 1:
            num_decode += 1
            decode_context += start + 1
        else:
            num_prefill += length
            prefill_tokens += prefill_context(start, length)
    num_sampled = int(plan.sample.sum()) if plan.layer_end == num_layers else 0
    share = (plan.layer_end - plan.layer_begin) / num_layers
    return StepShape(num_decode, decode_context, num_prefill, prefill_tokens, num_sampled, share)


class CostModel:
    """Predicts milliseconds of a `StepShape`. `observe` corrects it; `fit` replaces its coefficients."""

    def __init__(self, coefficients: Coefficients = CPU_PRIOR) -> None:
        self.coefficients = coefficients
        self.num_observed = 0
        #: Steps seen while somebody keeps them for `fit`.
        self.kept: list[tuple[StepShape, float]] | None = None
        #: Steps far from their prediction, that did not move it.
        self.num_outliers = 0
        self._corrections: dict[int, float] = {}
        #: The lowest of those of slices, None: not known.
        self._least_sliced: float | None = 1.0
        self._strays: dict[int, int] = {}
        #: When a bucket was seen last, as `num_observed`, and how often since it was stale.
        self._seen: dict[int, tuple[int, int]] = {}

    def predict(self, shape: StepShape) -> float:
        """Milliseconds, about the median."""
        base_ms = self._base(shape)
        return base_ms * self._corrections.get(_bucket(shape), 1.0) if self._corrections else base_ms

    def base(self, shape: StepShape) -> float:
        """Milliseconds by the coefficients alone, as calibrated: what later steps corrected is left out."""
        return self._base(shape)

    def predict_run(self, shape: StepShape, steps: range) -> list[float]:
        """Of decode steps so many steps later, when each row attends to as many more tokens: `predict` of those shapes,
        to the bit, in a tenth of the time."""
        c, num_decode, context, share = self.coefficients, shape.num_decode, shape.decode_context, shape.layer_share
        rows_ms, sampled_ms = c.forward + c.decode_row * num_decode, c.sampled_row * shape.num_sampled
        plan_ms, token_ms, correction = c.plan, c.decode_token, self._corrections.get(_bucket(shape), 1.0)
        times = [
            (plan_ms + share * (rows_ms + token_ms * (context + step * num_decode)) + sampled_ms) * correction
            for step in steps
        ]
        least_ms = 1e-6 * correction
        return times if times[0] > least_ms else [max(step_ms, least_ms) for step_ms in times]

    def predict_slices(self, shape: StepShape, num_layers: int) -> tuple[float, float]:
        """Of prefill rows that run through one of `num_layers` layers, and what each further layer adds."""
        layer_ms = self._layers_ms(shape) / num_layers
        first_ms = max(self.coefficients.plan + layer_ms, 1e-6)
        correction = self._corrections.get(_bucket(shape, is_sliced=True), 1.0)
        return first_ms * correction, layer_ms * correction

    def most_rate(self, start: int, num_rows: int, alone_ms: float, slack_ms: float) -> float:
        """Prefill rows that get done in a millisecond at the very most, a layer of a row counted as its share of one:
        by periods of `alone_ms` and a slice, within `slack_ms`, of at most `num_rows` rows from `start` on."""
        if self._least_sliced is None:
            self._least_sliced = min([1.0, *[value for bucket, value in self._corrections.items() if bucket & 1]])
        least, plan_ms = self._least_sliced, self.coefficients.plan
        row_ms = max(self._least_row_ms(start, num_rows), 1e-12)
        num_done = min((slack_ms / least - plan_ms) / row_ms, num_rows)
        return num_done / (alone_ms + least * (plan_ms + row_ms * num_done)) if num_done > 0.0 else 0.0

    def observe(self, shape: StepShape, elapsed_ms: float) -> None:
        """One measured step."""
        if elapsed_ms <= 0.0:
            return  # An engine that does not measure.
        if self.kept is not None:
            self.kept.append((shape, elapsed_ms))
        bucket = _bucket(shape)
        correction = self._corrections.get(bucket, 1.0)
        if bucket & 1:
            self._least_sliced = None
        ratio = elapsed_ms / self._base(shape)
        self.num_observed += 1
        last, num_seen = self._seen.get(bucket, (0, 0))
        num_seen = 1 if self.num_observed - last > _STALE_STEPS else num_seen + 1
        self._seen[bucket] = self.num_observed, num_seen
        # Whatever disturbs a step makes it longer.
        if ratio > _OUTLIER_RATIO * correction or (_OUTLIER_RATIO * ratio < correction and num_seen > _FEW):
            self.num_outliers += 1
            strays = self._strays[bucket] = self._strays.get(bucket, 0) + 1
            if strays < _OUTLIERS_IN_A_ROW:
                return
            correction = ratio
        self._strays[bucket] = 0
        most = _MOST_AT_ONCE * correction if num_seen > _FEW else inf
        self._corrections[bucket] = correction + max(_GAIN, 1 / num_seen) * max(-most, min(most, ratio - correction))

    def fit(self, samples: Sequence[tuple[StepShape, float]]) -> None:
        """Least squares of relative errors over measured steps, late ones left out, no coefficient negative; forgets
        corrections.

        A coefficient on which the samples say nothing keeps its value, scaled as the others moved.
        """
        if not samples:
            return
        knee = self.coefficients.knee_rows
        features = np.array([_features(shape, knee) for shape, _ in samples])
        times = np.maximum([elapsed_ms for _, elapsed_ms in samples], 1e-6)
        prior = np.array([getattr(self.coefficients, name) for name in _FITTED])
        scale = float(np.median(times / np.maximum(features @ prior, 1e-9)))
        prior = np.maximum(prior * scale, 1e-12)
        kept = np.ones(len(times), bool)
        for _ in range(_FIT_ROUNDS):
            # In units of the prior: one weak equation a coefficient holds what the samples leave open.
            weighted = np.vstack([features[kept] * prior / times[kept, None], _PRIOR_WEIGHT * np.eye(len(prior))])
            wanted = np.concatenate([np.ones(int(kept.sum())), np.full(len(prior), _PRIOR_WEIGHT)])
            solution = _solve_non_negative(weighted, wanted) * prior
            # Whatever disturbs a step makes it longer.
            late = times / np.maximum(features @ solution, 1e-9)
            kept = late < max(_LATE_RATIO, float(np.quantile(late, 0.5)))
        self.coefficients = replace(self.coefficients, **dict(zip(_FITTED, solution.tolist(), strict=True)))
        self._corrections.clear()
        self._least_sliced = 1.0
        self._strays.clear()
        self._seen.clear()

    def to_dict(self) -> dict[str, float]:
        """The coefficients, in ms; corrections are of the moment and not kept."""
        return asdict(self.coefficients)

    @classmethod
    def from_dict(cls, values: Mapping[str, float]) -> CostModel:
        return cls(Coefficients(**{**values, "knee_rows": int(values["knee_rows"])}))  # type: ignore[arg-type]

    def _base(self, shape: StepShape) -> float:
        c = self.coefficients
        if shape.num_prefill:
            layers_ms = self._layers_ms(shape)
        else:
            layers_ms = c.forward + c.decode_row * shape.num_decode + c.decode_token * shape.decode_context
        base_ms = c.plan + shape.layer_share * layers_ms + c.sampled_row * shape.num_sampled
        return base_ms if base_ms > 1e-6 else 1e-6

    def _layers_ms(self, shape: StepShape) -> float:
        """Of all layers."""
        c = self.coefficients
        num_prefill, knee_rows = shape.num_prefill, c.knee_rows
        layers_ms = c.forward + c.decode_row * shape.num_decode + c.decode_token * shape.decode_context
        if num_prefill:
            num_early = num_prefill if num_prefill < knee_rows else knee_rows
            layers_ms += (
                c.prefill_row * num_prefill
                + (c.early_row - c.prefill_row) * num_early
                + c.prefill_token * shape.prefill_context
            )
        return layers_ms

    def _least_row_ms(self, start: int, num_rows: int) -> float:
        """Of the cheapest row in a forward of at most `num_rows` rows from `start` on."""
        # On either side of the knee, more rows make each either cheaper or dearer: the cheapest are at an end.
        knee_rows = min(self.coefficients.knee_rows, num_rows)
        sizes = {num_rows, max(knee_rows, 1)}
        rows_ms = min([self._layers_ms(StepShape(num_prefill=size)) / size for size in sizes])
        return rows_ms + self.coefficients.prefill_token * start


def _features(shape: StepShape, knee_rows: int) -> tuple[float, ...]:
    """In the order of `Coefficients`."""
    share = shape.layer_share
    num_early = min(shape.num_prefill, knee_rows)
    return (
        1.0,
        share,
        share * shape.num_decode,
        share * num_early,
        share * (shape.num_prefill - num_early),
        share * shape.decode_context,
        share * shape.prefill_context,
        float(shape.num_sampled),
    )


def _bucket(shape: StepShape, *, is_sliced: bool = False) -> int:
    """Steps whose errors go together: by powers of four of prefill rows and of two of decode rows (what prefill between
    them does to their caches differs with their number), whole or sliced."""
    prefill, decode = (shape.num_prefill.bit_length() + 1) >> 1, shape.num_decode.bit_length()
    return (prefill << 8) | (decode << 1) | (is_sliced or shape.layer_share < 1.0)


def _solve_non_negative(matrix: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares; whatever comes out negative is set to zero and the rest solved again."""
    active = np.ones(matrix.shape[1], bool)
    solution = np.zeros(matrix.shape[1])
    while active.any():
        part = np.linalg.lstsq(matrix[:, active], values, rcond=None)[0]
        solution[:] = 0.0
        solution[active] = np.maximum(part, 0.0)
        if (part >= 0.0).all():
            break
        active[np.flatnonzero(active)[part < 0.0]] = False
    return solution
