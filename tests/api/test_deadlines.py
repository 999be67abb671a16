"""Service classes and targets over HTTP: what is asked, what is promised, what is counted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from api.live_server import LiveServer, Setup
from twinpath.api.deadlines import Miss, Service, ServiceDesk, judge
from twinpath.api.identity import KeyRing
from twinpath.api.turn import TurnStats
from twinpath.config import SchedulerConfig, SloClass, SloConfig
from twinpath.engine.scripted import ScriptedShape
from twinpath.errors import InvalidRequest

CLASSES = SloConfig(
    (SloClass("chat", 5000, 2500, 2.0), SloClass("batch", None, None), SloClass("default", 60_000)),
    (("sesame", "batch"),),
)


@pytest.fixture(scope="module")
def promising() -> Iterator[LiveServer]:
    """Lanes are on, so that promises are made."""
    server = LiveServer(
        Setup(
            shape=ScriptedShape(step_ms=1.0, depth=1, max_step_tokens=256),
            scheduler=SchedulerConfig(lanes="on", policy="twinpath"),
            slo=SloConfig(CLASSES.classes),
        )
    )
    yield server
    server.close()


@pytest.fixture(scope="module")
def shedding() -> Iterator[LiveServer]:
    server = LiveServer(
        Setup(
            shape=ScriptedShape(step_ms=1.0, depth=1, max_step_tokens=256),
            scheduler=SchedulerConfig(lanes="on", policy="twinpath", admission="shed"),
            slo=SloConfig((SloClass("now", 1e-3),)),
        )
    )
    yield server
    server.close()


def scope(**headers: str) -> dict[str, object]:
    return {"headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}


def test_headers_win_over_the_class_and_the_class_over_the_default() -> None:
    desk, ring = ServiceDesk(CLASSES), KeyRing(("sesame", "other"))
    batch, other = (ring.identify(scope(authorization=f"Bearer {key}")) for key in ("sesame", "other"))
    assert desk.service(scope(), batch) == Service("batch")
    assert desk.service(scope(), other) == Service("default", 60_000)
    assert desk.service(scope(x_slo_class="chat"), batch) == Service("chat", 5000, 2500, 2.0)
    asked = scope(x_slo_class="chat", x_slo_ttft_ms="12.5")
    assert desk.service(asked, other) == Service("chat", 12.5, 2500, 2.0)
    assert ServiceDesk(SloConfig()).service(scope(x_slo_tpot_ms="40"), other) == Service("", None, 40.0)


@pytest.mark.parametrize(
    "headers",
    [
        {"x_slo_class": "nobody"},
        {"x_slo_ttft_ms": "0"},
        {"x_slo_ttft_ms": "-1"},
        {"x_slo_tpot_ms": "nan"},
        {"x_slo_tpot_ms": "inf"},
        {"x_slo_tpot_ms": "soon"},
        {"x_slo_tpot_ms": ""},
    ],
)
def test_a_wrong_promise_is_refused(headers: dict[str, str]) -> None:
    caller = KeyRing(()).identify(scope())
    with pytest.raises(InvalidRequest) as refused:
        ServiceDesk(CLASSES).service(scope(**headers), caller)
    assert refused.value.param == next(iter(headers)).replace("_", "-")


def stats(ttft_s: float | None, gap_s: float = 0.0, num_gaps: int = 0, **more: float) -> TurnStats:
    """Targets: 1 s and 100 ms."""
    found = TurnStats(num_prompt=1, arrived_at=10.0, service=Service("c", 1000, 100), **more)  # type: ignore[arg-type]
    if ttft_s is not None:
        found.count(1, 10.0 + ttft_s)
    for _ in range(num_gaps):
        assert found.last_token_at is not None
        found.count(1, found.last_token_at + gap_s)
    return found


@pytest.mark.parametrize(
    ("turn", "reason", "miss"),
    [
        (stats(0.9, 0.09, 10), "stop", None),
        (stats(0.9), "length", None),
        (stats(None), "length", None),
        (stats(1.5, waited_ms=600), "stop", Miss("ttft", "queue")),
        (stats(1.5, waited_ms=400), "stop", Miss("ttft", "prefill")),
        (stats(0.9, 0.11, 10), "length", Miss("tpot", "decode")),
        (stats(0.9, 0.11, 10, stalled_s=0.3), "length", Miss("tpot", "client")),
        (stats(1.5, 0.2, 10, waited_ms=600), "stop", Miss("ttft", "queue")),
        (stats(None), "disconnect", Miss("ttft", "client")),
        (stats(0.9, 0.05, 3), "disconnect", None),
        (stats(None), "error:deadline_unreachable", Miss("ttft", "shed")),
        (stats(None), "error:overloaded_error", Miss("ttft", "shed")),
        (stats(None), "error:engine_error", Miss("ttft", "error")),
        (stats(0.9, 0.05, 3), "error:engine_error", Miss("tpot", "error")),
    ],
)
def test_the_first_broken_promise_and_its_cause(turn: TurnStats, reason: str, miss: Miss | None) -> None:
    assert judge(turn, reason) == miss


def test_lane_and_prediction_come_with_the_headers_and_the_outcome_with_usage(promising: LiveServer) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    answer = promising.post("/v1/chat/completions", body, headers={"x-slo-class": "chat"})
    assert answer.status_code == 200 and answer.headers["x-twinpath-lane"] == "fast"
    predicted_ms = float(answer.headers["x-twinpath-predicted-ttft-ms"])
    told = answer.json()["usage"]["twinpath"]
    assert told["lane"] == "fast" and told["slo_class"] == "chat" and told["ttft_ms"] > 0
    assert predicted_ms == pytest.approx(told["predicted_ttft_ms"], abs=0.051) and predicted_ms > 0


def test_a_stream_says_it_too(promising: LiveServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = promising.post("/v1/chat/completions", body)
    assert answer.headers["x-twinpath-lane"] == "fast" and float(answer.headers["x-twinpath-predicted-ttft-ms"]) > 0
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert chunks[-1]["usage"]["twinpath"]["slo_class"] == "default"


def test_attainment_is_counted_by_class_and_cause(promising: LiveServer) -> None:
    before = counts(promising)
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    for headers in (
        {"x-slo-class": "chat"},
        {"x-slo-class": "batch"},
        {"x-slo-class": "chat", "x-slo-ttft-ms": "0.001"},
    ):
        assert promising.post("/v1/chat/completions", body, headers=headers).status_code == 200
    after = counts(promising)
    assert after["met"] - before["met"] == 1
    assert after["missed"] - before["missed"] == 1
    metrics = promising.http.get("/metrics").text
    assert re.search(r'slo_missed_total\{cause="(queue|prefill)",class="chat",.*stage="ttft"\} 1\.0', metrics)
    assert re.search(r'slo_met_total\{class="batch",.*\} 0\.0', metrics)
    assert re.search(r'twinpath:ttft_prediction_error_ratio_count\{lane="fast",.*\} [1-9]', metrics)
    for name in ("lane_requests_waiting", "wait_weibull_shape", "itl_budget_ms", "engine_restarts_total"):
        assert f"twinpath:{name}" in metrics


def counts(server: LiveServer) -> dict[str, float]:
    text = server.http.get("/metrics").text
    return {
        name: sum(float(value) for value in re.findall(rf'^slo_{name}_total\{{.*class="chat".*\}} (\S+)$', text, re.M))
        for name in ("met", "missed")
    }


def test_what_cannot_be_met_is_shed_with_the_reason(shedding: LiveServer) -> None:
    answer = shedding.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello"}], "stream": True},
        headers={"x-slo-class": "now"},
    )
    error = answer.json()["error"]
    assert answer.status_code == 429 and error["code"] == "deadline_unreachable"
    assert "the target is 0 ms" in error["message"]
    # Its own prefill takes longer than the target: asking again is no use.
    assert answer.headers["x-should-retry"] == "false" and "retry-after" not in answer.headers
    assert float(answer.headers["x-twinpath-predicted-ttft-ms"]) > 0
    metrics = shedding.http.get("/metrics").text
    assert re.search(r'slo_missed_total\{cause="shed",class="now",.*stage="ttft"\} 1\.0', metrics)


def test_without_a_target_nothing_is_shed(shedding: LiveServer) -> None:
    assert shedding.chat().status_code == 200


def test_wrong_headers_are_a_400_in_the_envelope(promising: LiveServer) -> None:
    answer = promising.post("/v1/completions", {"prompt": "Hello"}, headers={"x-slo-ttft-ms": "fast please"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "x-slo-ttft-ms"


def test_without_lanes_nothing_is_promised(server: LiveServer) -> None:
    answer = server.chat()
    assert "x-twinpath-lane" not in answer.headers
    assert set(answer.json()["usage"]["twinpath"]) == {"ttft_ms"}


def test_refusals_of_a_full_server_say_its_limits() -> None:
    full = LiveServer(
        Setup(scheduler=SchedulerConfig(max_num_seqs=1, max_waiting=0), shape=ScriptedShape(step_ms=20.0))
    )
    try:
        with full.http.stream(
            "POST", "/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 200}
        ) as first:
            lines = first.iter_lines()
            next(lines)
            refused = full.post("/v1/completions", {"prompt": "x"})
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-ratelimit-limit-requests"] == "1"
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert re.fullmatch(r"\d+\.\d{3}s", refused.headers["x-ratelimit-reset-requests"])
    finally:
        full.close()
