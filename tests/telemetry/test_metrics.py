"""Counts and histograms as a scraper reads them."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from twinpath.telemetry.metrics import ServerMetrics
from twinpath.telemetry.tally import TOKEN_GAP_BOUNDS_S, Tally


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """(sample name, its `le` or reason label) -> value."""
    families = text_string_to_metric_families(text.decode())
    return {
        (sample.name, sample.labels.get("le", sample.labels.get("finished_reason", ""))): sample.value
        for family in families
        for sample in family.samples
    }


def observe(metrics: ServerMetrics, gaps: list[float], reason: str = "stop") -> None:
    tally = Tally()
    for gap in gaps:
        tally.add(gap)
    metrics.observe_turn(
        num_prompt=3, num_output=len(gaps) + 1, finish_reason=reason, ttft_s=0.02, token_gaps=tally, total_s=0.5
    )


def test_token_gaps_are_counted_as_a_histogram_counts_them() -> None:
    values = [random.Random(1).expovariate(100) for _ in range(1000)] + list(TOKEN_GAP_BOUNDS_S) + [0.0, 100.0]
    registry = CollectorRegistry()
    right = Histogram("right", "", ("model_name",), buckets=TOKEN_GAP_BOUNDS_S, registry=registry).labels("m")
    for value in values:
        right.observe(value)
    metrics = ServerMetrics("m")
    observe(metrics, values)
    expected, got = samples(generate_latest(registry)), samples(metrics.render())
    for name in ("bucket", "count", "sum"):
        for (full, label), value in expected.items():
            if full == f"right_{name}":
                assert abs(got[f"vllm:inter_token_latency_seconds_{name}", label] - value) < 1e-6


def test_a_turn_of_one_token_has_no_gap() -> None:
    metrics = ServerMetrics("m")
    observe(metrics, [])
    got = samples(metrics.render())
    assert got["vllm:inter_token_latency_seconds_count", ""] == 0
    assert got["vllm:request_time_per_output_token_seconds_count", ""] == 0
    assert got["vllm:time_to_first_token_seconds_count", ""] == 1


def test_turns_are_counted_by_their_reason() -> None:
    metrics = ServerMetrics("m")
    for reason in ("stop", "length", "stop", "abort"):
        observe(metrics, [0.01], reason)
    got = samples(metrics.render())
    assert got["vllm:request_success_total", "stop"] == 2
    assert got["vllm:request_success_total", "abort"] == 1
    assert got["vllm:prompt_tokens_total", ""] == 12
    assert got["vllm:generation_tokens_total", ""] == 8


def test_watched_values_are_read_at_scrape_time() -> None:
    metrics = ServerMetrics("m")
    state = {"running": 1.0, "hits": 5.0}
    metrics.watch("vllm:num_requests_running", "Running.", lambda: state["running"])
    metrics.watch_total("vllm:prefix_cache_hits", "Hits.", lambda: state["hits"])
    state.update(running=7, hits=9)
    got = samples(metrics.render())
    assert got["vllm:num_requests_running", ""] == 7
    assert got["vllm:prefix_cache_hits_total", ""] == 9


def test_model_names_with_odd_characters_are_escaped() -> None:
    text = ServerMetrics('org/na"me\\x').render().decode()
    assert 'model_name="org/na\\"me\\\\x"' in text
