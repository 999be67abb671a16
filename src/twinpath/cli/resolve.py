"""Checked values of flags, environment and file -> one frozen `ServeConfig`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from twinpath.cli.service_classes import parse_slo
from twinpath.cli.settings import DTYPE_SYNONYMS, SETTINGS, Section, Setting
from twinpath.config import EngineConfig, HttpConfig, SchedulerConfig, ServeConfig
from twinpath.errors import UserError

SCRIPTED_SCHEME = "scripted://"
#: typer offers no choice among numbers, so this one is checked here.
ACTIVATION_BITS = (8, 16)

#: Beside a GPU; a machine with fewer cores has none to spare.
_DEFAULT_SPIN_S = 1.0
_SPIN_CORES = 8

#: Smallest and largest allowed value of a setting, inclusive.
RANGES: Mapping[str, tuple[float, float]] = {
    "port": (0, 65535),
    "http_keepalive_timeout": (1, 86_400),
    "http_max_connections": (1, 1_000_000),
    "http_max_body_bytes": (1024, 1 << 40),
    "sse_keepalive": (0.1, 3600),
    "write_timeout": (0.1, 86_400),
    "watchdog_silent": (1, 86_400),
    "trace_stalls_ms": (0, 60_000),
    "drain_timeout": (0, 86_400),
    "threads": (1, 1024),
    "page_size": (1, 4096),
    "kv_cache_mb": (1, 1 << 24),
    "gpu_memory_utilization": (0.05, 1.0),
    "max_model_len": (2, 1 << 30),
    "tensor_parallel_size": (1, 64),
    "spin": (0, 3600),
    "max_num_seqs": (1, 65_536),
    "max_num_batched_tokens": (1, 1 << 24),
    "max_waiting": (0, 1 << 24),
    "session_ttl": (0.1, 86_400),
    "max_pinned_share": (0, 0.95),
}

#: Kind of engine -> settings that it does not read.
UNREAD: Mapping[str, frozenset[str]] = {
    "native": frozenset({"dtype"}),
    "reference": frozenset({"threads", "isa", "activation_bits", "batch_invariant", "tensor_parallel_size"}),
    "scripted": frozenset(
        {"device", "dtype", "threads", "isa", "activation_bits", "page_size", "kv_cache_mb", "gpu_memory_utilization"}
        | {"batch_invariant", "tensor_parallel_size"}
    ),
}

#: What only the CUDA engine reads.
_CUDA_ONLY = frozenset({"batch_invariant", "tensor_parallel_size"})


def unread_settings(engine: EngineConfig) -> frozenset[str]:
    """Settings that have no effect with this engine: not shown, and worth a line when somebody set one."""
    if engine.kind != "scripted" and engine.device == "cuda":
        return UNREAD["reference"] - (_CUDA_ONLY if engine.kind == "native" else set())
    return UNREAD[engine.kind] | {"gpu_memory_utilization"} | _CUDA_ONLY


def choose_model(argument: str | None, flag: str | None, default: str) -> str:
    if argument is not None and flag is not None and argument != flag:
        raise UserError(f"two models given: {argument!r} and --model {flag!r}")
    return argument or flag or default


def resolve(model: str, values: Mapping[str, Any]) -> ServeConfig:
    """Build the configuration of one server. `engine.model_path` is still as the user wrote it: fetching comes later.

    Raises:
        UserError: a value out of its range, or two that cannot go together.
    """
    sections: dict[Section, dict[str, Any]] = {"serve": {}, "http": {}, "engine": {}, "scheduler": {}, "slo": {}}
    for setting in SETTINGS:
        sections[setting.section][setting.field] = checked(setting, values[setting.name])
    engine = resolve_engine(model, sections["engine"])
    serve = sections["serve"]
    return ServeConfig(
        model=model,
        served_model_name=serve["served_model_name"] or served_name(model),
        engine=engine,
        http=HttpConfig(**sections["http"]),
        scheduler=SchedulerConfig(**sections["scheduler"]),
        slo=parse_slo(**sections["slo"], api_keys=sections["http"]["api_keys"]),
        watchdog_silent_s=serve["watchdog_silent_s"],
        pin_templates=serve["pin_templates"],
        chat_template=read_template(serve["chat_template"]),
        log_level=serve["log_level"],
    )


def checked(setting: Setting, value: Any) -> Any:
    """The value in the field's own form, within its range."""
    if isinstance(value, list):
        # One flag may carry several, so that an environment variable can.
        given, value = (
            value,
            tuple(part.strip() for item in value for part in item.split(setting.separator) if part.strip()),
        )
        if given and not value:
            # `--api-key "$KEY"` with KEY unset must not open the server to everybody.
            raise UserError(f"{setting.flag}: the value is empty; leave the flag out to set none")
    if setting.name == "dtype":
        value = DTYPE_SYNONYMS.get(value, value)
    if value is not None and setting.name in RANGES:
        low, high = RANGES[setting.name]
        if not low <= value <= high:
            raise UserError(f"{setting.flag} {value}: must be between {low:g} and {high:g}")
    if setting.name == "activation_bits" and value not in ACTIVATION_BITS:
        raise UserError(f"{setting.flag} {value}: must be one of {', '.join(map(str, ACTIVATION_BITS))}")
    return value


def resolve_engine(model: str, values: dict[str, Any]) -> EngineConfig:
    kind: Literal["native", "reference", "scripted"] = values.pop("kind") or "native"
    device = values["device"]
    if model.startswith(SCRIPTED_SCHEME):
        kind = "scripted"
    if values["tensor_parallel_size"] > 1 and (kind != "native" or device != "cuda"):
        raise UserError("--tensor-parallel-size: only --device cuda shares a model, and not with --engine reference")
    if kind == "scripted":
        return EngineConfig(model_path=Path(model.removeprefix(SCRIPTED_SCHEME)), kind="scripted", **values)
    if kind == "reference" or device == "cuda":
        require_torch(device)
    return EngineConfig(model_path=Path(model), kind=kind, **values)


def spin_s(engine: EngineConfig, num_cores: int) -> float:
    """Seconds to spin on a machine with so many cores."""
    if engine.spin_s is not None:
        return engine.spin_s
    has_gpu = engine.kind != "scripted" and engine.device == "cuda"
    return _DEFAULT_SPIN_S if has_gpu and num_cores >= _SPIN_CORES else 0.0


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def require_torch(device: str) -> None:
    """Say how to get torch before a process is started that would fail without it. Does not import it."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        wanted = "--device cuda" if device == "cuda" else "--engine reference"
        raise UserError(f"{wanted} needs torch: pip install 'torch>=2.11,<2.14'")


def served_name(model: str) -> str:
    """What clients call the model when no name was given: the alias, org/name, or the file's stem."""
    if model.startswith("hf://"):
        return model.removeprefix("hf://").split("@")[0]
    if "://" in model:
        return Path(model.split("://", 1)[1]).stem
    path = Path(model).expanduser()
    if not os.path.exists(path):  # Unlike Path.exists, no error for a name that no file can have.
        return model
    return path.resolve().stem if path.is_file() else path.resolve().name


def read_template(template: str | None) -> str | None:
    """A chat template is a file's name, or Jinja text when it holds markup."""
    if template is None or "{{" in template or "{%" in template:
        return template
    try:
        return Path(template).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--chat-template {template}: {error.strerror}") from error
    except ValueError:
        raise UserError(f"--chat-template {template!r}: is no text file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--chat-template {template}: not UTF-8 text") from error


def with_model(config: ServeConfig, path: Path, default_sampling: Mapping[str, float]) -> ServeConfig:
    """The configuration once the model's files are on this disk."""
    return replace(
        config,
        engine=replace(config.engine, model_path=path, spin_s=spin_s(config.engine, num_cores())),
        default_sampling=dict(default_sampling),
    )


def cache_dir() -> Path:
    """Where fetched models live: TWINPATH_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get("TWINPATH_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "twinpath"
