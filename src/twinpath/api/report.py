"""What is kept of an exchange when it is over: its log line and its share of the metrics."""

from __future__ import annotations

import logging
from time import monotonic

from twinpath.api.deadlines import NO_CLASS, judge
from twinpath.api.exchange import Exchange
from twinpath.api.turn import TurnStats
from twinpath.telemetry.logging import REQUESTS, RequestLine
from twinpath.telemetry.metrics import ServerMetrics

#: Known paths keep their name as a metric label; anything else a client makes up is "other".
GENERATION_ROUTES = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/twinpath.v1.Generation/Generate",
        "/twinpath.v1.Generation/Chat",
    }
)
ROUTES = GENERATION_ROUTES | {
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/health",
    "/health/ready",
    "/metrics",
    "/openapi.json",
}


class ExchangeReport:
    """Called once per exchange, at its end."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._log = logging.getLogger(REQUESTS)

    def __call__(self, exchange: Exchange) -> None:
        now = monotonic()
        route = exchange.path if exchange.path in ROUTES else "other"
        self._metrics.count_response(route, exchange.status)
        total_s = now - exchange.started_at
        for turn in exchange.turns:
            self._metrics.observe_turn(
                num_prompt=turn.num_prompt,
                num_output=turn.num_output,
                finish_reason=_finished_reason(exchange.reason),
                ttft_s=None if turn.first_token_at is None else turn.first_token_at - exchange.body_at,
                token_gaps=turn.token_gaps,
                total_s=now - exchange.body_at,
            )
            self._note_promises(turn, exchange.reason)
        if exchange.turns:
            self._metrics.observe_exchange(total_s)
        level = logging.INFO if exchange.path in GENERATION_ROUTES else logging.DEBUG
        if self._log.isEnabledFor(level):
            self._log.log(level, "%s", _line(exchange, total_s))

    def _note_promises(self, turn: TurnStats, reason: str) -> None:
        slo, service, promise = self._metrics.slo, turn.service, turn.promise
        if service.has_target:
            miss = judge(turn, reason)
            class_name = service.class_name or NO_CLASS
            if miss is None:
                slo.count_met(class_name)
            else:
                slo.count_missed(class_name, miss.stage, miss.cause)
        if promise is not None and promise.predicted_ttft_ms is not None and turn.first_token_at is not None:
            actual_ms = (turn.first_token_at - turn.arrived_at) * 1e3
            slo.observe_prediction(promise.lane, promise.predicted_ttft_ms, actual_ms)


def _finished_reason(reason: str) -> str:
    """vLLM's words where it has them."""
    if reason in ("stop", "length"):
        return reason
    if reason == "tool_calls":
        return "stop"
    return "error" if reason.startswith("error") else "abort"


def _line(exchange: Exchange, total_s: float) -> RequestLine:
    turns = exchange.turns
    first_tokens = [turn.first_token_at for turn in turns if turn.first_token_at is not None]
    return RequestLine(
        request_id=exchange.request_id,
        engine_id=exchange.engine_ids[0] if exchange.engine_ids else "",
        method=exchange.method,
        path=exchange.path if exchange.path in ROUTES else repr(exchange.path[:120]),
        status=exchange.status,
        num_prompt=sum(turn.usage.prompt_tokens for turn in turns),
        num_cached=sum(turn.usage.cached_tokens for turn in turns),
        num_output=sum(turn.num_output for turn in turns),
        ttft_ms=(min(first_tokens) - exchange.body_at) * 1000 if first_tokens else None,
        total_ms=total_s * 1000,
        reason=exchange.reason,
    )
