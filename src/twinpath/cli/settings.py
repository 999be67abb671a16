"""The settings of `twinpath serve`: one table gives the flag, the environment variable, the file key and the default.

A value comes from the flag, else `TWINPATH_<NAME>`, else the file named by `--config`, else the default in `config.py`.
"""

from __future__ import annotations

import difflib
import inspect
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import typer

from twinpath.config import EngineConfig, HttpConfig, SchedulerConfig, ServeConfig, SloConfig
from twinpath.errors import UserError

Section = Literal["serve", "http", "engine", "scheduler", "slo"]
SECTIONS: dict[Section, type] = {
    "serve": ServeConfig,
    "http": HttpConfig,
    "engine": EngineConfig,
    "scheduler": SchedulerConfig,
    "slo": SloConfig,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `field` is its place in `SECTIONS[section]`, which also gives type and default."""

    name: str
    section: Section
    field: str
    help: str
    #: Other file keys that mean the same.
    aliases: tuple[str, ...] = ()
    #: Other flags that mean the same.
    flags: tuple[str, ...] = ()
    #: Between the items of a list that is given in one value.
    separator: str = ","
    #: Type and default of the flag where they are not the field's (None and ... mean the field's).
    type: Any = None
    default: Any = ...
    metavar: str | None = None
    panel: str = "Serving"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return f"TWINPATH_{self.name.upper()}"

    def value_type(self) -> Any:
        """The flag's type: tuples are given as a repeated flag, so they are lists here."""
        if self.type is not None:
            return self.type
        hint = get_type_hints(SECTIONS[self.section])[self.field]
        return list[str] if get_origin(hint) is tuple else hint

    def default_value(self) -> Any:
        if self.default is not ...:
            return self.default
        value = {f.name: f.default for f in fields(SECTIONS[self.section])}[self.field]
        return list(value) if isinstance(value, tuple) else value

    def is_flag(self) -> bool:
        return self.value_type() is bool

    def parameter(self) -> inspect.Parameter:
        """The typer parameter that this setting becomes."""
        declaration = f"{self.flag}/--no-{self.flag[2:]}" if self.is_flag() else self.flag
        default = self.default_value()
        option = typer.Option(
            declaration,
            *self.flags,
            envvar=self.env,
            help=self.help,
            metavar=self.metavar,
            rich_help_panel=self.panel,
            show_default=default is not None and default != [],
            show_envvar=False,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[self.value_type(), option],
        )


#: vLLM spells two dtypes in a second way.
DTYPE_SYNONYMS = {"half": "float16", "float": "float32"}
Dtype = Literal["auto", "float32", "float", "bfloat16", "float16", "half"]

SETTINGS: tuple[Setting, ...] = (
    Setting("host", "http", "host", "Address to listen on."),
    Setting("port", "http", "port", "Port to listen on."),
    Setting("grpc_port", "http", "grpc_port", "Port for gRPC; unset: none. Needs twinpath[grpc]."),
    Setting("api_key", "http", "api_keys", "Key that clients must send; repeat for several.", metavar="KEY"),
    Setting(
        "admin_key", "http", "admin_keys", "Key that may manage pinned templates; repeat for several.", metavar="KEY"
    ),
    Setting(
        "served_model_name",
        "serve",
        "served_model_name",
        "Name in /v1/models and requests.",
        type=str | None,
        default=None,
    ),
    Setting("chat_template", "serve", "chat_template", "Jinja file, or text, that replaces the model's chat template."),
    Setting("tool_format", "serve", "tool_format", "How the model writes tool calls; auto: as its template tells."),
    Setting("reasoning_format", "serve", "reasoning_format", "How the model marks reasoning; auto, none or a name."),
    Setting("log_level", "serve", "log_level", "Least severe line that is logged."),
    Setting(
        "trace_stalls_ms",
        "scheduler",
        "trace_stalls_ms",
        "Log what holds up a loop for so many milliseconds; 0: off.",
    ),
    Setting(
        "watchdog_silent",
        "serve",
        "watchdog_silent_s",
        "Seconds of silence until the engine's process is replaced.",
    ),
    Setting("http_keepalive", "http", "keepalive", "Reuse connections.", panel="HTTP"),
    Setting(
        "http_keepalive_timeout",
        "http",
        "keepalive_timeout_s",
        "Idle seconds before a kept connection closes; longer than the proxy's upstream timeout (nginx: 60).",
        panel="HTTP",
    ),
    Setting("http_max_connections", "http", "max_connections", "Most open connections.", panel="HTTP"),
    Setting("http_max_body_bytes", "http", "max_body_bytes", "Largest request body.", panel="HTTP"),
    Setting("allowed_origin", "http", "allowed_origins", "CORS origin; repeat for several.", panel="HTTP"),
    Setting(
        "sse_keepalive", "http", "sse_keepalive_s", "Silent seconds before a stream gets a comment line.", panel="HTTP"
    ),
    Setting(
        "response_store_mb", "http", "response_store_mb", "MiB of past responses kept for follow-ups.", panel="HTTP"
    ),
    Setting("write_timeout", "http", "write_timeout_s", "Seconds a slow reader may stall a stream.", panel="HTTP"),
    Setting("drain_timeout", "http", "drain_timeout_s", "Seconds running requests get after Ctrl-C.", panel="HTTP"),
    Setting(
        "engine",
        "engine",
        "kind",
        "Step implementation: the fast one of the device, or plain torch (its twin).",
        type=Literal["native", "reference"] | None,
        default=None,
        panel="Engine",
    ),
    Setting("device", "engine", "device", "Where steps run; cuda needs torch.", panel="Engine"),
    Setting(
        "dtype",
        "engine",
        "dtype",
        "Arithmetic on CUDA and of the reference engine.",
        type=Dtype,
        default="auto",
        panel="Engine",
    ),
    Setting("threads", "engine", "threads", "Compute threads; unset: chosen from the cores.", panel="Engine"),
    Setting("isa", "engine", "isa", "Kernel set: auto, avx512vnni, avxvnni, avx2, neon, portable.", panel="Engine"),
    Setting(
        "activation_bits",
        "engine",
        "activation_bits",
        "16 answers as fp32 does; 8 prefills faster and changes answers.",
        type=int,
        panel="Engine",
    ),
    Setting("page_size", "engine", "page_size", "Tokens per KV page.", panel="Engine"),
    Setting(
        "kv_cache_mb", "engine", "kv_cache_mb", "KV pool in MiB; unset: 16,384 tokens or the window.", panel="Engine"
    ),
    Setting(
        "gpu_memory_utilization",
        "engine",
        "gpu_memory_utilization",
        "Share of GPU memory for weights and KV (cuda).",
        panel="Engine",
    ),
    Setting(
        "max_model_len", "engine", "max_model_len", "Context window in tokens; unset: the model's own.", panel="Engine"
    ),
    Setting(
        "batch_invariant",
        "engine",
        "batch_invariant",
        "Same bits whatever else runs: batch, chunks, cache, preemption (cuda; slower).",
        panel="Engine",
    ),
    Setting(
        "tensor_parallel_size",
        "engine",
        "tensor_parallel_size",
        "GPUs that share the model (cuda).",
        panel="Engine",
    ),
    Setting(
        "spin",
        "engine",
        "spin_s",
        "Seconds after the last work in which gateway and engine look for more without sleeping; unset: 1 with a GPU.",
        panel="Engine",
    ),
    Setting(
        "max_num_seqs",
        "scheduler",
        "max_num_seqs",
        "Most requests in one step.",
        aliases=("max_batch_size",),
        panel="Scheduler",
    ),
    Setting(
        "max_num_batched_tokens",
        "scheduler",
        "max_num_batched_tokens",
        "Most tokens in one step; unset: chosen for the device.",
        aliases=("max_num_tokens",),
        panel="Scheduler",
    ),
    Setting("max_waiting", "scheduler", "max_waiting", "Queued requests before 429.", panel="Scheduler"),
    Setting(
        "enable_prefix_caching", "scheduler", "enable_prefix_caching", "Reuse KV of shared prefixes.", panel="Scheduler"
    ),
    Setting(
        "pin_template",
        "serve",
        "pin_templates",
        "JSON file of messages and tools whose KV is computed at start and kept; repeat for several.",
        metavar="FILE",
        panel="Memory",
    ),
    Setting(
        "enable_session_kv", "scheduler", "enable_session_kv", "Keep a session's KV between turns.", panel="Memory"
    ),
    Setting(
        "session_ttl",
        "scheduler",
        "session_ttl_s",
        "Seconds without a turn until a session's KV is free.",
        panel="Memory",
    ),
    Setting(
        "max_pinned_share",
        "scheduler",
        "max_pinned_share",
        "Largest share of the KV pool for pinned templates.",
        panel="Memory",
    ),
    Setting(
        "enable_chunked_prefill",
        "scheduler",
        "enable_chunked_prefill",
        "Split long prompts over steps.",
        panel="Scheduler",
    ),
    Setting("lanes", "scheduler", "lanes", "Keep streams on time beside long prompts.", panel="Scheduler"),
    Setting(
        "flex_threshold",
        "scheduler",
        "flex_threshold",
        "Prompts with more uncached tokens give way to shorter ones; unset: chosen for the device.",
        panel="Scheduler",
    ),
    Setting(
        "itl_budget",
        "scheduler",
        "itl_budget",
        "Longest time between a stream's tokens beside prefill, in decode steps.",
        panel="Scheduler",
    ),
    Setting("itl_budget_ms", "scheduler", "itl_budget_ms", "The same in milliseconds.", panel="Scheduler"),
    Setting("policy", "scheduler", "policy", "Who is served first.", panel="Scheduler"),
    Setting(
        "admission",
        "scheduler",
        "admission",
        "Requests whose first token cannot come in time: observe serves them in turn, queue after the others, "
        "shed refuses with 429.",
        panel="Deadlines",
    ),
    Setting(
        "slo_class",
        "slo",
        "classes",
        "Service class: milliseconds to the first token and between tokens (- for none); repeat for several.",
        aliases=("class",),
        flags=("--class",),
        separator=";",
        metavar="NAME=TTFT,TPOT[,WEIGHT]",
        panel="Deadlines",
    ),
    Setting(
        "key_class",
        "slo",
        "class_of_key",
        "Class of an API key's requests; repeat for several.",
        metavar="KEY=NAME",
        panel="Deadlines",
    ),
)

#: Settings of `serve` that are no field of a config.
EXTRA_KEYS = ("model",)


def load_file(path: Path) -> dict[str, Any]:
    """Read a TOML or JSON file of settings: flag names, with dashes or underscores, or their aliases.

    Raises:
        UserError: unreadable, not TOML or JSON, or with a key that is no setting.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(values, Mapping):
        raise UserError(f"{path} must hold a table of settings")
    settings: dict[str, Any] = {}
    for key, value in values.items():
        name = canonical_key(key, path)
        if name in settings:
            raise UserError(f"{path}: {name} is set twice")
        check_kind(name, value, path)
        settings[name] = value
    return settings


def check_kind(name: str, value: Any, path: Path) -> None:
    """Refuse what no flag could say: the option parser would make text or a number of it."""
    if isinstance(value, list):
        plain = all(isinstance(item, str) for item in value)
    elif isinstance(value, bool):
        plain = any(setting.name == name and setting.is_flag() for setting in SETTINGS)
    else:
        plain = value is None or isinstance(value, str | int | float)
    if not plain:
        raise UserError(f"{path}: {name} has a value of the wrong type ({type(value).__name__})")


def canonical_key(key: str, path: Path) -> str:
    names = {s.name: s.name for s in SETTINGS} | {alias: s.name for s in SETTINGS for alias in s.aliases}
    names |= {name: name for name in EXTRA_KEYS}
    wanted = key.replace("-", "_")
    if wanted in names:
        return names[wanted]
    close = difflib.get_close_matches(wanted, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UserError(f"{path}: unknown setting {key!r}{hint}")


def spell_flags(argv: list[str]) -> list[str]:
    """Rewrite `--flag=true` and `--flag=false`, which some scripts use, to `--flag` and `--no-flag`."""
    spellings = {}
    for setting in SETTINGS:
        if setting.is_flag():
            spellings[f"{setting.flag}=true"] = setting.flag
            spellings[f"{setting.flag}=false"] = f"--no-{setting.flag[2:]}"
    words = [spellings.get(word.lower() if word.startswith("--") else word, word) for word in argv]
    return words if words[:1] != ["serve"] else list(_spell_lanes(words))


def _spell_lanes(words: list[str]) -> Iterator[str]:
    """`--lanes` is on or off, and may be spelled like a flag that is alone."""
    alone = {"--no-lanes": "off", "--lanes=true": "on", "--lanes=false": "off"}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--lanes":
            yield "--lanes" if following in ("on", "off") else "--lanes=on"
        else:
            yield f"--lanes={alone[word.lower()]}" if word.lower() in alone else word
