"""How long requests wait, fitted by a Weibull distribution from our own waits, censored ones included.

A wait is censored when its end was not seen: the request still waits, was cancelled or shed. Leaving those out would
make waits look shorter the worse things are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul

#: Below this many finished waits a two-parameter fit says more than it knows.
_MIN_SERVED = 8
#: A wait of zero has no logarithm; the clock cannot tell shorter ones apart.
_SHORTEST_S = 1e-4
#: Shapes outside are no queue's: nearly all waits equal, or a tail without mean.
_SHAPE_RANGE = (0.05, 50.0)
_MAX_ITERATIONS = 60


@dataclass(frozen=True, slots=True)
class Weibull:
    """P(wait > t) = exp(-(t / scale_s) ** shape)."""

    shape: float
    scale_s: float

    def miss_probability(self, waited_s: float, target_s: float) -> float:
        """P(wait > target_s | wait > waited_s): that a request which has waited so long already will miss."""
        if waited_s >= target_s:
            return 1.0
        return math.exp(self._hazard(waited_s) - self._hazard(target_s))

    def _hazard(self, wait_s: float) -> float:
        """Cumulative hazard; finite for any wait."""
        if wait_s <= 0:
            return 0.0
        return math.exp(min(self.shape * math.log(wait_s / self.scale_s), 700.0))


def fit_weibull(served_s: Sequence[float], censored_s: Sequence[float] = (), guess: float = 1.0) -> Weibull | None:
    """Maximum likelihood; None with fewer than 8 served waits. `guess`: the last fit's shape, saves iterations.

    Source: the profile likelihood of the shape k over all waits x, with r served ones:
        sum(x^k ln x) / sum(x^k) - 1/k - mean(ln x, served) = 0, increasing in k; scale^k = sum(x^k) / r.
    """
    num_served = len(served_s)
    if num_served < _MIN_SERVED:
        return None
    logs = [math.log(max(wait_s, _SHORTEST_S)) for wait_s in served_s]
    mean_served = math.fsum(logs) / num_served
    logs += [math.log(max(wait_s, _SHORTEST_S)) for wait_s in censored_s]
    # Relative to the longest wait, so that no power overflows.
    longest = max(logs)
    logs = [value - longest for value in logs]
    mean_served -= longest
    low, high = _SHAPE_RANGE
    shape = min(max(guess, low), high)
    for _ in range(_MAX_ITERATIONS):
        powers = [math.exp(shape * value) for value in logs]
        total = sum(powers)
        first = sum(map(mul, powers, logs)) / total
        slope = sum(power * value * value for power, value in zip(powers, logs, strict=True)) / total - first * first
        excess = first - 1 / shape - mean_served
        low, high = (low, shape) if excess > 0 else (shape, high)
        newton = shape - excess / (slope + 1 / (shape * shape))
        step = newton if low < newton < high else (low + high) / 2
        done, shape = abs(step - shape) < 1e-6 * shape, step
        if done:
            break
    total = sum(math.exp(shape * value) for value in logs)
    return Weibull(shape, math.exp(longest + math.log(total / num_served) / shape))


class WaitHistory:
    """The last waits of one class, and the fit over them.

    Cost: `fit` of 256 waits is about 1 ms of plain Python; call it every few dozen waits, not every step.
    """

    def __init__(self, window: int = 256) -> None:
        self._waits: deque[tuple[float, bool]] = deque(maxlen=window)
        self._shape = 1.0
        #: Waits added since the last fit, and what that found.
        self.num_new = 0
        self.fitted: Weibull | None = None

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait_s: float, served: bool) -> None:
        """A wait ended: `served`, or censored (cancelled, shed)."""
        self._waits.append((wait_s, served))
        self.num_new += 1

    def fit(self, still_waiting_s: Iterable[float] = ()) -> Weibull | None:
        """Over the window and the ages of those who wait now; None while too little is known."""
        self.num_new = 0
        waits = list(self._waits)  # At once: the loop may add while a heartbeat fits.
        served = [wait_s for wait_s, was_served in waits if was_served]
        censored = [wait_s for wait_s, was_served in waits if not was_served]
        self.fitted = fit_weibull(served, [*censored, *still_waiting_s], self._shape)
        if self.fitted is not None:
            self._shape = self.fitted.shape
        return self.fitted
