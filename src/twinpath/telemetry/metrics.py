"""The Prometheus metrics of one server. Names are vLLM's where vLLM has one, so that its dashboards work unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from twinpath.telemetry.slo import SloMetrics
from twinpath.telemetry.tally import TOKEN_GAP_BOUNDS_S, Tally, TallyCollector

#: Seconds, for first tokens and whole requests: 1 ms to minutes.
_REQUEST_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
)

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Counters and histograms of one server, in a registry of their own."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._label = {"model_name": model_name}
        names = tuple(self._label)

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(name, text, (*names, *more), registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, names, buckets=buckets, registry=self.registry).labels(**self._label)

        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of answered requests.").labels(**self._label)
        self._generation_tokens = counter("vllm:generation_tokens", "Tokens generated.").labels(**self._label)
        self._success = counter("vllm:request_success", "Requests answered, by finish reason.", "finished_reason")
        self._responses = counter("twinpath:http_responses", "HTTP answers, by route and status.", "route", "status")
        self._ttft = histogram(
            "vllm:time_to_first_token_seconds", "From the request's last byte to the first token.", _REQUEST_BUCKETS
        )
        self._per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per token after the first.", TOKEN_GAP_BOUNDS_S
        )
        self._gaps = TallyCollector(
            "vllm:inter_token_latency_seconds", "Between two tokens of one request.", self._label, TOKEN_GAP_BOUNDS_S
        )
        self.registry.register(self._gaps)
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "From request to last token.", _REQUEST_BUCKETS)
        self.slo = SloMetrics(self.registry, self._label)
        self._agent = histogram(
            "agent_end_to_end_seconds", "From the request's first byte in to its last byte out.", _REQUEST_BUCKETS
        )

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read at scrape time."""
        Gauge(name, text, tuple(self._label), registry=self.registry).labels(**self._label).set_function(read)

    def watch_by(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """A gauge per value of one more label, read at scrape time."""
        self.registry.register(_Labelled(name, text, self._label, label, read))

    def watch_total(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A total that another room counts, read at scrape time."""
        self.registry.register(_Total(name, text, self._label, read))

    def count_response(self, route: str, status: int) -> None:
        self._responses.labels(**self._label, route=route, status=str(status)).inc()

    def observe_turn(
        self,
        *,
        num_prompt: int,
        num_output: int,
        finish_reason: str,
        ttft_s: float | None,
        token_gaps: Tally,
        total_s: float,
    ) -> None:
        """One generation that is over, whatever its end."""
        self._prompt_tokens.inc(num_prompt)
        self._generation_tokens.inc(num_output)
        self._success.labels(**self._label, finished_reason=finish_reason).inc()
        self._e2e.observe(total_s)
        if ttft_s is not None:
            self._ttft.observe(ttft_s)
        if token_gaps.num_values:
            self._gaps.tally.merge(token_gaps)
            self._per_token.observe(token_gaps.total / token_gaps.num_values)

    def observe_exchange(self, total_s: float) -> None:
        """One generation call as its client sees it."""
        self._agent.observe(total_s)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


class _Total(Collector):
    """A counter family whose value lives elsewhere."""

    def __init__(self, name: str, text: str, labels: Mapping[str, str], read: Callable[[], float]) -> None:
        self._name, self._text, self._labels, self._read = name, text, labels, read

    def collect(self) -> list[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), self._read())
        return [family]


class _Labelled(Collector):
    """A gauge family whose values live elsewhere."""

    def __init__(
        self, name: str, text: str, labels: Mapping[str, str], more: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        self._name, self._text, self._labels, self._more, self._read = name, text, labels, more, read

    def collect(self) -> list[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=[*self._labels, self._more])
        for value, number in self._read().items():
            family.add_metric([*self._labels.values(), value], number)
        return [family]
