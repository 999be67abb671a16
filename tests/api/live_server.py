"""A real server on a loopback port, in a thread with its own uvloop, over the scripted engine in another thread.

After each use `at_rest` checks the free rule of every case: a plain request still answers 200, and nothing is held.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop

from twinpath.api.app import build_app
from twinpath.api.listener import bind
from twinpath.api.server import StoppableServer
from twinpath.config import EngineConfig, HttpConfig, SchedulerConfig, ServeConfig, SloConfig
from twinpath.engine.scripted import Script, ScriptedEngine, ScriptedShape, ScriptFile
from twinpath.gateway import LocalLauncher, Replica
from twinpath.grammar import GrammarCompiler, Vocabulary
from twinpath.text.byte_model import byte_model

MODEL = "org/scripted"
#: Matches no prompt of a case; its answer is known.
PLAIN_PROMPT = "zz plain request zz"
PLAIN = Script(match=PLAIN_PROMPT, text="plain answer")
#: No verdict: what a machine may take that is busy with other things.
WAIT_S = 30.0


@dataclass(frozen=True)
class Setup:
    """What a case needs of its server."""

    scripts: tuple[Script, ...] = ()
    default: Script = field(default_factory=lambda: Script(text="Paris is the capital."))
    shape: ScriptedShape = field(default_factory=ScriptedShape)
    http: dict[str, Any] = field(default_factory=dict)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    slo: SloConfig = field(default_factory=SloConfig)
    chat_template: str | None = None
    tool_format: str = "auto"
    reasoning_format: str = "auto"
    default_sampling: dict[str, float] = field(default_factory=dict)
    stall_s: float = 60.0
    keep_plans: bool = False


class LiveServer:
    """Starts on construction; `close` drains it and joins its thread."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        config = HttpConfig(**{"port": 0, "drain_timeout_s": 5.0, "max_connections": 500, **setup.http})
        self.config = ServeConfig(
            model="scripted://",
            served_model_name=MODEL,
            engine=EngineConfig(model_path=Path("scripted.json"), kind="scripted"),
            http=config,
            scheduler=setup.scheduler,
            slo=setup.slo,
            default_sampling=setup.default_sampling,
        )
        self.engine = ScriptedEngine(
            ScriptFile(engine=setup.shape, scripts=(PLAIN, *setup.scripts), default=setup.default),
            keep_plans=setup.keep_plans,
        )
        self._listener = bind(config)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        #: For plain calls; a client of its own is for cases about connections.
        self.http = self.client()
        self.num_expected = 0
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live-server", daemon=True)
        self._thread.start()
        assert self._ready.wait(WAIT_S), "the server did not start"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as failure:
                self._failure = failure
                self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        scheduler = self.setup.scheduler
        text = byte_model(
            self.setup.shape.max_model_len,
            self.setup.chat_template,
            tool_format=self.setup.tool_format,
            reasoning_format=self.setup.reasoning_format,
        )
        vocabulary = Vocabulary(text.tokenizer, self.setup.shape.vocab_size, text.stop_token_ids)
        launcher = LocalLauncher(self.engine, scheduler, GrammarCompiler(vocabulary))
        self.replica = Replica(launcher, max_waiting=scheduler.max_waiting)
        await self.replica.start()
        app = build_app(self.config, text, self.replica, stall_s=self.setup.stall_s)
        self.server = StoppableServer(app, self.config.http, drain=self.replica.drain, expect=self._expect)
        try:
            serving = asyncio.create_task(self.server.serve([self._listener]))
            while not (self.server.started or serving.done()):
                await asyncio.sleep(0.001)
            self._ready.set()
            await serving
        finally:
            await self.replica.stop()

    def _expect(self) -> None:
        self.num_expected += 1
        self.replica.expect()

    def close(self) -> None:
        self.http.close()
        with suppress(RuntimeError):  # It has stopped already, and its loop with it.
            self.loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server did not stop"

    # ------------------------------------------------------------------------------------------------- asking it

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT_S, trust_env=False, verify=False, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **options.pop("headers", {})}
        return self.http.post(path, content=content, headers=headers, **options)

    def chat(self, prompt: str = "Hello", **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], **fields})

    def complete(self, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def gauges(self) -> dict[str, float]:
        """Samples of /metrics by name; of a name with several label sets, the last."""
        text = self.http.get("/metrics", headers=self._auth()).text
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name.partition("{")[0]: float(value) for name, value in samples}

    def _auth(self) -> dict[str, str]:
        keys = self.config.http.api_keys
        return {"authorization": f"Bearer {keys[0]}"} if keys else {}

    def wait_until(self, condition: Any, what: str, within_s: float = WAIT_S) -> None:
        """Poll a condition: these are states of other threads that announce nothing."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
            time.sleep(0.01)

    def at_rest(self) -> None:
        """A plain request answers; no request runs or waits and no KV page is referenced."""
        body = {"messages": [{"role": "user", "content": PLAIN_PROMPT}]}
        answer = self.post("/v1/chat/completions", body, headers=self._auth())
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "plain answer"
        self.wait_until(self.is_idle, "gauges back at zero")

    def is_idle(self) -> bool:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        gauges = self.gauges()
        return not any(gauges[name] for name in names) and self.replica.num_inflight == 0


@contextmanager
def live_server(setup: Setup) -> Iterator[LiveServer]:
    """A server for one case, checked to be at rest before it is closed."""
    server = LiveServer(setup)
    try:
        yield server
        server.at_rest()
    finally:
        server.close()
