"""Puts the door together: routes, layers, and the parts they share."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from twinpath.api.anthropic.endpoints import CountTokens, Messages
from twinpath.api.chat import ChatCompletions
from twinpath.api.completions import Completions
from twinpath.api.deadline_metrics import watch_deadlines, watch_stalls
from twinpath.api.deadlines import ServiceDesk
from twinpath.api.generation import Door
from twinpath.api.grammar_metrics import watch_grammars
from twinpath.api.grammars import Grammars
from twinpath.api.identity import KeyRing
from twinpath.api.memory_metrics import watch_memory
from twinpath.api.middleware import Auth, Cors, Exchanges
from twinpath.api.normalize import SamplingDoor
from twinpath.api.offload import Offload
from twinpath.api.openapi import openapi_document
from twinpath.api.plain_routes import Allow, HealthChecks, Models, Rendered, not_found
from twinpath.api.ports import Replica, TextModel
from twinpath.api.prompts import PromptEncoder
from twinpath.api.refused_routes import REFUSED, Refused
from twinpath.api.report import ExchangeReport
from twinpath.api.responses_api.endpoints import Responses, StoredResponses
from twinpath.api.responses_api.store import ResponseStore
from twinpath.api.sessions import Sessions
from twinpath.api.templates import Templates
from twinpath.api.tokenization import Detokenize, Tokenize
from twinpath.config import ServeConfig
from twinpath.telemetry.metrics import CONTENT_TYPE, ServerMetrics
from twinpath.telemetry.stalls import StallTracer

#: Work without a token for this long means not ready. Prompts as long as the window prefill within it on slow machines.
STALL_S = 60.0


@dataclass(frozen=True, slots=True)
class Entrance:
    """One server's way in: the ASGI app, and the parts that another protocol's server shares with it."""

    app: ASGIApp
    door: Door
    keys: KeyRing
    report: ExchangeReport
    health: HealthChecks


def build_app(
    config: ServeConfig,
    text: TextModel,
    replica: Replica,
    *,
    stall_s: float = STALL_S,
    tracer: StallTracer | None = None,
) -> ASGIApp:
    """The ASGI app of one server. `replica` may still be loading: generation answers 503 until it is ready."""
    return build_entrance(config, text, replica, stall_s=stall_s, tracer=tracer).app


def build_entrance(
    config: ServeConfig,
    text: TextModel,
    replica: Replica,
    *,
    stall_s: float = STALL_S,
    tracer: StallTracer | None = None,
) -> Entrance:
    """The app and its parts. `tracer`: watches the loop that serves it."""
    door = _door(config, text, replica)
    metrics = _metrics(config.served_model_name, replica)
    watch_deadlines(metrics, replica, config.slo)
    watch_stalls(metrics, replica, tracer)
    watch_memory(metrics, replica)
    watch_grammars(metrics, replica)
    keys, report = KeyRing(config.http.api_keys, config.http.admin_keys), ExchangeReport(metrics)
    health = HealthChecks(replica, stall_s=stall_s)
    app: ASGIApp = _router(door, metrics, health)
    app = Auth(app, keys=keys)
    app = Cors(app, allowed_origins=config.http.allowed_origins)
    app = Exchanges(app, report=report, log=logging.getLogger("twinpath.api"))
    return Entrance(Lifespan(app, door.offload), door, keys, report, health)


def _door(config: ServeConfig, text: TextModel, replica: Replica) -> Door:
    sampling = SamplingDoor(
        defaults={**text.default_sampling, **config.default_sampling},
        vocab_size=text.tokenizer.vocab_size,
        end_token_ids=text.stop_token_ids,
    )
    offload = Offload()
    return Door(
        model_name=config.served_model_name,
        http=config.http,
        text=text,
        replica=replica,
        sampling=sampling,
        prompts=PromptEncoder(text, sampling, offload),
        offload=offload,
        desk=ServiceDesk(config.slo),
        grammars=Grammars(offload),
    )


class Lifespan:
    """The outermost layer: ends the worker threads when the server stops."""

    def __init__(self, app: ASGIApp, offload: Offload) -> None:
        self._app = app
        self._offload = offload

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._live(receive, send) if scope["type"] == "lifespan" else self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self._offload.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})


class Shortcut:
    """To a few routes without parameters by one look at the path: a router tries one pattern after the other."""

    def __init__(self, router: ASGIApp, routes: Iterable[Route]) -> None:
        self._router = router
        self._endpoints = {route.path: route.app for route in routes}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._endpoints.get(scope.get("path", ""), self._router)(scope, receive, send)


def _router(door: Door, metrics: ServerMetrics, health: HealthChecks) -> ASGIApp:
    models = Models(door.model_name, door.replica, created=int(time.time()))
    sessions, templates = Sessions(door.replica), Templates(door)
    document = openapi_document(door.model_name)
    responses = ResponseStore(door.http.response_store_mb * 1024 * 1024)
    get = ("GET", "HEAD")
    routes = [
        Route("/v1/chat/completions", Allow(ChatCompletions(door), "POST")),
        Route("/v1/completions", Allow(Completions(door), "POST")),
        Route("/v1/responses", Allow(Responses(door, responses), "POST")),
        Route("/v1/responses/{id}", Allow(StoredResponses(responses), "GET", "HEAD", "DELETE")),
        Route("/v1/messages", Allow(Messages(door), "POST")),
        Route("/v1/messages/count_tokens", Allow(CountTokens(door), "POST")),
        Route("/tokenize", Allow(Tokenize(door), "POST")),
        Route("/detokenize", Allow(Detokenize(door), "POST")),
        *(Route(path, Refused(what)) for path, what in REFUSED.items()),
        Route("/v1/twinpath/sessions", Allow(sessions.all, *get)),
        Route("/v1/twinpath/sessions/{id:path}", Allow(sessions.one, *get, "DELETE")),
        Route("/v1/twinpath/templates", Allow(templates.all, *get, "POST")),
        Route("/v1/twinpath/templates/{name:path}", Allow(templates.one, *get, "DELETE")),
        Route("/v1/models", Allow(models.list, *get)),
        Route("/v1/models/{id:path}", Allow(models.get, *get)),
        Route("/health", Allow(health.live, *get)),
        Route("/health/ready", Allow(health.ready, *get)),
        Route("/metrics", Allow(Rendered(metrics.render, CONTENT_TYPE), *get)),
        Route("/openapi.json", Allow(Rendered(lambda: document, b"application/json"), *get)),
    ]
    return Shortcut(Router(routes, redirect_slashes=False, default=not_found), routes[:2])


def _metrics(model_name: str, replica: Replica) -> ServerMetrics:
    metrics = ServerMetrics(model_name)
    metrics.watch("vllm:num_requests_running", "Requests being generated.", lambda: replica.num_running)
    metrics.watch("vllm:num_requests_waiting", "Requests in the queue.", lambda: replica.num_waiting)
    metrics.watch(
        "vllm:kv_cache_usage_perc", "Share of KV pages that running requests hold, 0 to 1.", lambda: _kv_usage(replica)
    )
    metrics.watch_total(
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda: replica.gauges.prefix_queries,
    )
    metrics.watch_total("vllm:prefix_cache_hits", "Prompt tokens found there.", lambda: replica.gauges.prefix_hits)
    metrics.watch_total(
        "vllm:num_preemptions", "Requests preempted for want of pages.", lambda: replica.gauges.preemptions
    )
    return metrics


def _kv_usage(replica: Replica) -> float:
    gauges = replica.gauges
    return gauges.pages_used / gauges.pages_total if gauges.pages_total else 0.0
