"""Every setting of a server, frozen, with unit and reason. Only `cli` reads argv, env and files; rooms get slices."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The listening side."""

    host: str = "127.0.0.1"
    port: int = 8000
    #: Accepted keys; empty: an open server that takes any key.
    api_keys: tuple[str, ...] = ()
    #: Keys that may also manage pinned templates; none: nobody may while the server runs.
    admin_keys: tuple[str, ...] = ()
    #: Reuse connections.
    keepalive: bool = True
    #: Idle seconds before a kept connection is closed; a proxy must close first (nginx: 60 s): no reuse then races.
    keepalive_timeout_s: int = 120
    max_connections: int = 10_000
    #: Largest request body.
    max_body_bytes: int = 32 * 1024 * 1024
    #: CORS: origins allowed to read answers.
    allowed_origins: tuple[str, ...] = ("*",)
    #: An SSE comment line is sent when nothing else was for this long: proxies cut silent streams at 50 s.
    sse_keepalive_s: float = 10.0
    #: Port of the gRPC server on the same address, which needs the extra `twinpath[grpc]`; None: none.
    grpc_port: int | None = None
    #: Memory for the conversations that `previous_response_id` goes on with; 0 keeps none.
    response_store_mb: int = 64
    #: Seconds a write to a slow reader may stall before the request is cancelled.
    write_timeout_s: float = 60.0
    #: Seconds that running requests get to finish after the first Ctrl-C or SIGTERM.
    drain_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process needs; it crosses the process border as JSON."""

    #: Local path of the model: a GGUF file, a safetensors directory, or a scripted engine's JSON file.
    model_path: Path
    kind: Literal["native", "reference", "scripted"] = "native"
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    #: None: chosen from the cores at start.
    threads: int | None = None
    #: auto or a kernel set (avx512vnni, avxvnni, avx2, neon, portable): forcing one is for tests and comparisons.
    isa: str = "auto"
    #: 16-bit activations answer as fp32 does; 8 is faster in prefill and changes answers (docs/decisions).
    activation_bits: Literal[8, 16] = 16
    #: Tokens per KV page. A cached prefix ends at a page border, so smaller pages recompute less of the last turn.
    page_size: int = 16
    #: KV pool size; touched lazily. None: 16,384 tokens' worth or the window, whichever is more.
    kv_cache_mb: int | None = None
    #: Share of GPU memory for weights and KV (cuda only; `kv_cache_mb` wins over it).
    gpu_memory_utilization: float = 0.9
    #: None: the model's own window.
    max_model_len: int | None = None
    #: Logits do not depend, bit for bit, on batch, chunking, cached prefixes or preemption (cuda only): slower.
    batch_invariant: bool = False
    #: GPUs that share the model, each with its part of every layer (cuda only).
    tensor_parallel_size: int = 1
    #: Seconds after the last work in which gateway and engine look for more without sleeping, a core each: who sleeps
    #: is woken late and runs cold. None: 1 with a GPU and cores to spare, else 0.
    spin_s: float | None = None


@dataclass(frozen=True, slots=True)
class SloClass:
    """A service class: what its requests are promised unless they say otherwise."""

    name: str
    #: First token this long after the request's last byte, and each later one after the one before; None: no promise.
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    #: Share of attention among requests of equal urgency.
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SloConfig:
    """Which requests are promised what. The class named `default` is that of requests that name none."""

    classes: tuple[SloClass, ...] = ()
    #: API key -> name of the class of its requests.
    class_of_key: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What one step may hold."""

    max_num_seqs: int = 64
    #: Tokens in one step. None: chosen for the device (CPU: small, so that cancels and joins are quick).
    max_num_batched_tokens: int | None = None
    #: Requests waiting beyond this are refused with 429.
    max_waiting: int = 4096
    enable_prefix_caching: bool = True
    #: Keep what a session's turns computed until the next one comes; needs prefix caching.
    enable_session_kv: bool = True
    #: Seconds without a turn after which a session's KV is free.
    session_ttl_s: float = 300.0
    #: Largest share of the KV pool that pinned templates may take.
    max_pinned_share: float = 0.5
    #: Split long prompts over steps; off: a prompt runs in one step.
    enable_chunked_prefill: bool = True
    #: Keep the tokens of running streams on time beside long prompts; off: prefill fills every step. Not the default
    #: until its budgets are measured to hold.
    lanes: Literal["on", "off"] = "off"
    #: Prompts with more uncached tokens take the FLEX lane. None: chosen for the device.
    flex_threshold: int | None = None
    #: Longest time between a stream's tokens beside prefill, as a multiple of its decode step alone.
    itl_budget: float = 3.0
    #: The same in milliseconds, instead.
    itl_budget_ms: float | None = None
    #: Who is served first.
    policy: Literal["fcfs", "priority", "sjf", "edf", "base", "twinpath"] = "fcfs"
    #: What becomes of a request whose target for the first token cannot be met: served in its turn; served after those
    #: whose target can; or refused with 429.
    admission: Literal["observe", "queue", "shed"] = "queue"
    #: Log and count what holds up a loop for longer, naming the frame; 0: nobody looks (looking costs ~2 % of a core).
    trace_stalls_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """All of it, after resolution."""

    #: As the user wrote it: alias, path, hf://, pypi://, scripted://.
    model: str
    served_model_name: str
    engine: EngineConfig
    http: HttpConfig = field(default_factory=HttpConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    slo: SloConfig = field(default_factory=SloConfig)
    #: Seconds without a word of the engine's process until it is replaced: its pulse beats every 0.5 s.
    watchdog_silent_s: float = 3.0
    #: JSON files with prompt beginnings (messages, tools) whose KV is computed at start and kept.
    pin_templates: tuple[str, ...] = ()
    #: Overrides the model's own chat template (Jinja text).
    chat_template: str | None = None
    #: How the model writes tool calls and reasoning: a name of `text/answer`, or auto, which looks at the template.
    tool_format: str = "auto"
    reasoning_format: str = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    #: Sampling defaults that the alias sets on top of the model's generation_config.
    default_sampling: dict[str, float] = field(default_factory=dict)
