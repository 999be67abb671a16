"""Metrics of promises: which were kept, what broke the others, and how good predictions were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram

#: |predicted - actual| / actual.
_ERROR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)


class SloMetrics:
    """A request with targets counts once: as met, or by the first promise that was broken."""

    def __init__(self, registry: CollectorRegistry, label: Mapping[str, str]) -> None:
        names = tuple(label)
        self._label = dict(label)
        self._met = Counter("slo_met", "Requests that met all their targets.", (*names, "class"), registry=registry)
        self._missed = Counter(
            "slo_missed",
            "Requests that missed a target, by the first missed (ttft, tpot) and its cause.",
            (*names, "class", "stage", "cause"),
            registry=registry,
        )
        self._error = Histogram(
            "twinpath:ttft_prediction_error_ratio",
            "Distance of the time to the first token from the prediction at arrival, as a share of it.",
            (*names, "lane"),
            buckets=_ERROR_BUCKETS,
            registry=registry,
        )

    def show_classes(self, names: Iterable[str]) -> None:
        """Classes are there with zero before their first request, so that rates can be taken."""
        for name in names:
            self._met.labels(**self._label, **{"class": name})

    def count_met(self, class_name: str) -> None:
        self._met.labels(**self._label, **{"class": class_name}).inc()

    def count_missed(self, class_name: str, stage: str, cause: str) -> None:
        self._missed.labels(**self._label, **{"class": class_name}, stage=stage, cause=cause).inc()

    def observe_prediction(self, lane: str, predicted_ms: float, actual_ms: float) -> None:
        self._error.labels(**self._label, lane=lane).observe(abs(predicted_ms - actual_ms) / max(actual_ms, 1e-3))
