from __future__ import annotations

import json

from twinpath.bench import RequestRecord, result_document, summarize


def record(index: int, **fields: object) -> RequestRecord:
    defaults = {
        "intended_s": float(index),
        "sent_s": index + 0.25,
        "first_token_s": index + 0.5,
        "last_token_s": index + 1.5,
        "piece_s": [index + 0.5, index + 0.75, index + 1.5],
        "done_s": index + 2.0,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 4,
    }
    return RequestRecord(index=index, **{**defaults, **fields})  # type: ignore[arg-type]


def test_summary_of_good_requests() -> None:
    summary = summarize([record(0), record(1)])
    assert (summary.num_requests, summary.num_failed, summary.duration_s) == (2, 0, 3.0)
    assert (summary.prompt_tokens, summary.completion_tokens, summary.cached_tokens) == (20, 10, 8)
    assert summary.tokens_per_s == 10 / 3
    assert summary.ttft_ms and summary.ttft_ms.p50 == 500.0
    assert summary.gap_ms and (summary.gap_ms.n, summary.gap_ms.min, summary.gap_ms.max) == (4, 250.0, 750.0)
    assert summary.token_ms and summary.token_ms.p50 == 250.0
    assert summary.latency_ms and summary.latency_ms.p50 == 2000.0
    assert summary.send_lag_ms and summary.send_lag_ms.p50 == 250.0


def test_failures_are_counted_and_never_averaged_in() -> None:
    failed = [record(1, error="status 503: no\nmore"), record(2, error="status 503: no\nway"), record(3, done_s=None)]
    summary = summarize([record(0), *failed])
    assert summary.num_failed == 3
    assert summary.errors == {"status 503: no": 2, "never ended": 1}
    assert summary.completion_tokens == 5 and summary.ttft_ms and summary.ttft_ms.n == 1


def test_summary_of_nothing() -> None:
    summary = summarize([])
    assert summary.num_requests == 0 and summary.tokens_per_s == 0.0 and summary.ttft_ms is None


def test_document_says_where_it_came_from() -> None:
    document = json.loads(result_document("demo", ["make", "bench"], {"peer": "1.2"}, {"run": summarize([record(0)])}))
    assert document["command"] == ["make", "bench"] and document["versions"] == {"peer": "1.2"}
    assert document["machine"]["cores"] >= 1 and document["machine"]["kernel"] and document["machine"]["cpu"]
    assert document["run"]["ttft_ms"]["p50"] == 500.0 and document["date"].endswith("+00:00")
