"""From records to a summary, and from summaries to one JSON document that says where its numbers came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from twinpath.bench.host import describe_machine
from twinpath.bench.records import RequestRecord
from twinpath.bench.statistics import Distribution, describe


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Latencies are of requests that ended well and count from the intended time.

    Failures are counted, never averaged in.
    """

    num_requests: int
    num_failed: int
    #: What went wrong -> how often; the first line only.
    errors: dict[str, int]
    duration_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tokens_per_s: float
    ttft_ms: Distribution | None
    #: Between pieces of one stream, over all streams.
    gap_ms: Distribution | None
    #: Mean per token of each request, over requests.
    token_ms: Distribution | None
    latency_ms: Distribution | None
    #: How late the client sent: when this is not small the run measured the client.
    send_lag_ms: Distribution | None


def _present(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def summarize(records: Sequence[RequestRecord]) -> Summary:
    """Summary of a run's records, in any order."""
    good = [record for record in records if record.ok]
    begin = min((record.intended_s for record in records), default=0.0)
    end = max((record.done_s for record in records if record.done_s is not None), default=begin)
    completion_tokens = sum(record.completion_tokens for record in good)
    failed = [record.error.splitlines()[0] if record.error else "never ended" for record in records if not record.ok]
    return Summary(
        num_requests=len(records),
        num_failed=len(failed),
        errors=dict(Counter(failed)),
        duration_s=end - begin,
        prompt_tokens=sum(record.prompt_tokens for record in good),
        completion_tokens=completion_tokens,
        cached_tokens=sum(record.cached_tokens for record in good),
        tokens_per_s=completion_tokens / (end - begin) if end > begin else 0.0,
        ttft_ms=describe(_present([record.ttft_ms for record in good])),
        gap_ms=describe([gap for record in good for gap in record.gaps_ms()]),
        token_ms=describe(_present([record.token_ms for record in good])),
        latency_ms=describe(_present([record.latency_ms for record in good])),
        send_lag_ms=describe(_present([record.send_lag_ms for record in good])),
    )


def result_document(name: str, command: Sequence[str], versions: dict[str, str], body: dict[str, Any]) -> bytes:
    """The file that is kept: what ran, where, with which versions and command, and `body` (JSON or msgspec values)."""
    document = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "machine": describe_machine(),
        "versions": versions,
        **body,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
