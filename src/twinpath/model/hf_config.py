"""`ModelSpec` from a Hugging Face `config.json`, old spellings and Transformers 5's alike."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from twinpath.errors import ModelLoadError
from twinpath.model.spec import MAX_LAYERS, ModelSpec, RopeSpec

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3"]
Json = Mapping[str, Any]

_FAMILIES: Mapping[str, Family] = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
#: What Transformers' config classes assume where a published config.json leaves a key out.
_GEMMA3_DEFAULTS: Json = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "tie_word_embeddings": True,
}
_OTHER_DEFAULTS: Json = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
_ROPE_KINDS: Mapping[str, Literal["none", "linear", "llama3", "yarn"]] = {
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


def spec_from_config(path: Path) -> ModelSpec:
    """Read `path` (a config.json). Raises: ModelLoadError naming the key or feature that cannot be used."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object")
    return _Reader(path, content).spec()


@dataclass(frozen=True, slots=True)
class _Layers:
    windows: tuple[int | None, ...]
    is_local: tuple[bool, ...]


class _Reader:
    def __init__(self, path: Path, content: Json) -> None:
        self.path = path
        self.prefix = ""
        self.content = content
        _refuse_quantized(path, content)
        if content.get("model_type") == "gemma3" and isinstance(content.get("text_config"), dict):
            outer, content = content, content["text_config"]
            self.prefix = "text_config."
            self.content = {"model_type": "gemma3_text", **_dtype_of(outer), **content}
            _refuse_quantized(path, content)
        kind = self.content.get("model_type")
        if not isinstance(kind, str) or kind not in _FAMILIES:
            raise self.error(
                f"model_type {kind!r:.80} is not supported, supported are {', '.join([*_FAMILIES, 'gemma3'])}"
            )
        architectures = content.get("architectures") or ["ForCausalLM"]
        if not str(architectures[0] if isinstance(architectures, list) else "").endswith(
            ("ForCausalLM", "ForConditionalGeneration")
        ):
            raise self.error(f"architecture {architectures!r:.80} is not a causal language model")
        self.family = _FAMILIES[kind]
        self.defaults = _GEMMA3_DEFAULTS if self.family == "gemma3" else _OTHER_DEFAULTS

    def error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {what}")

    def get(self, key: str) -> Any:
        value = self.content.get(key)
        return self.defaults.get(key) if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self.error(f"'{self.prefix}{key}' is {value!r:.80}, expected a positive integer")
        return value

    def number(self, key: str, source: Json | None = None, default: float | None = None) -> float:
        value = (source if source is not None else self.content).get(key)
        value = (default if source is not None else self.defaults.get(key, default)) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(f"'{self.prefix}{key}' is {value!r:.80}, expected a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(f"'{self.prefix}{key}' is {value!r:.80}, expected true or false")
        return value

    def spec(self) -> ModelSpec:
        gemma = self.family == "gemma3"
        self._refuse_unsupported()
        hidden, heads = self.integer("hidden_size"), self.integer("num_attention_heads")
        head_dim = self.integer("head_dim", hidden // heads)
        layers = self._layers()
        ropes, max_position = self._ropes()
        attention_bias = self.flag("attention_bias") if self.family in ("llama", "qwen3", "gemma3") else False
        return ModelSpec(
            family=self.family,
            num_layers=len(layers.windows),
            hidden_size=hidden,
            intermediate_size=self.integer("intermediate_size"),
            num_heads=heads,
            num_kv_heads=self.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            vocab_size=self.integer("vocab_size"),
            max_position=max_position,
            norm_eps=self.number("rms_norm_eps"),
            tied_embeddings=self.flag("tie_word_embeddings"),
            activation="gelu_tanh" if gemma else "silu",
            qkv_bias=attention_bias or self.family == "qwen2",
            o_bias=attention_bias,
            qk_norm=self.family in ("qwen3", "gemma3"),
            sandwich_norms=gemma,
            embed_scale=self._embed_scale(hidden) if gemma else 1.0,
            attn_scale=(self.number("query_pre_attn_scalar") if gemma else head_dim) ** -0.5,
            ropes=ropes,
            layer_rope=tuple(int(gemma and local) for local in layers.is_local),
            layer_window=layers.windows,
        )

    def _refuse_unsupported(self) -> None:
        wanted = "gelu_pytorch_tanh" if self.family == "gemma3" else "silu"
        key = "hidden_activation" if self.family == "gemma3" else "hidden_act"
        if self.get(key) != wanted:
            raise self.error(f"activation {self.get(key)!r:.80} is not supported for {self.family}, expected {wanted}")
        for key in ("mlp_bias", "final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"):
            if self.get(key):
                raise self.error(f"'{self.prefix}{key}' is set, which is not supported")

    def _embed_scale(self, hidden: int) -> float:
        """Gemma's checkpoints multiply in their own dtype, so the scale is rounded to it."""
        scale = np.float32(math.sqrt(hidden))
        dtype = str(_dtype_of(self.content).get("dtype", "float32")).removeprefix("torch.")
        if dtype == "bfloat16":
            bits = int(scale.view(np.uint32))
            bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
            return float(np.uint32(bits).view(np.float32))
        return float(np.float16(scale)) if dtype == "float16" else math.sqrt(hidden)

    def _layers(self) -> _Layers:
        num_layers = self.integer("num_hidden_layers")
        if num_layers > MAX_LAYERS:
            raise self.error(f"'{self.prefix}num_hidden_layers' is {num_layers}, at most {MAX_LAYERS} are supported")
        window = self._window()
        local = self._local_layers(num_layers, window)
        if any(local) and window is None:
            raise self.error(f"'{self.prefix}layer_types' names sliding layers but no 'sliding_window' is set")
        return _Layers(tuple(window if is_local else None for is_local in local), tuple(local))

    def _window(self) -> int | None:
        if self.family == "llama" or (self.family.startswith("qwen") and not self.flag("use_sliding_window")):
            return None
        return self.integer("sliding_window") if self.get("sliding_window") is not None else None

    def _local_layers(self, num_layers: int, window: int | None) -> list[bool]:
        kinds = self.get("layer_types")
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != num_layers:
                raise self.error(f"'{self.prefix}layer_types' must list {num_layers} layers")
            unknown = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]
            if unknown:
                raise self.error(f"layer type {unknown[0]!r:.80} is not supported")
            return [kind == "sliding_attention" for kind in kinds]
        if self.family == "gemma3":
            period = self.integer("sliding_window_pattern", 6)
            return [(layer + 1) % period != 0 for layer in range(num_layers)]
        first = 0
        if window is not None and self.family.startswith("qwen"):
            value = self.get("max_window_layers")
            first = value if isinstance(value, int) and value >= 0 else 28
        return [window is not None and layer >= first for layer in range(num_layers)]

    def _ropes(self) -> tuple[tuple[RopeSpec, ...], int]:
        """The rotary embeddings (of full attention, then Gemma's local one) and the longest position they serve."""
        max_position = self.integer("max_position_embeddings", 2048)
        new = self.content.get("rope_parameters")
        main: Any = new if new is not None else self.content.get("rope_scaling")
        local: Any = None
        if isinstance(main, dict) and ("full_attention" in main or "sliding_attention" in main):
            main, local = main.get("full_attention"), main.get("sliding_attention")
        if main is None:
            main = {}
        if not isinstance(main, dict) or not isinstance(local, dict | None):
            raise self.error("the rope settings must be JSON objects")
        rope = self._rope(main, self.number("rope_theta", main, self.number("rope_theta")), max_position)
        if self.family != "gemma3":
            if rope.scaling == "yarn" or (rope.scaling == "linear" and "original_max_position_embeddings" not in main):
                base = rope.original_max_positions if rope.scaling == "yarn" else max_position
                max_position = max(max_position, int(base * rope.factor))
            return (rope,), max_position
        local_theta = self.number("rope_local_base_freq")
        local = local or {}
        local_rope = self._rope(local, self.number("rope_theta", local, local_theta), max_position)
        return (rope, local_rope), max_position

    def _rope(self, settings: Json, theta: float, max_position: int) -> RopeSpec:
        name = settings.get("rope_type", settings.get("type", "default"))
        kind = _ROPE_KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise self.error(f"rope scaling {name!r:.80} is not supported, supported are {', '.join(_ROPE_KINDS)}")
        partial = settings.get("partial_rotary_factor", self.content.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            raise self.error(f"partial rotary embedding (factor {partial!r:.80}) is not supported")
        if kind == "none":
            return RopeSpec(theta)
        factor = settings.get("factor")
        original = settings.get("original_max_position_embeddings")
        if original is None:
            original = self.content.get("original_max_position_embeddings", max_position)
        if isinstance(original, bool) or not isinstance(original, int) or original < 1:
            raise self.error(f"'original_max_position_embeddings' is {original!r:.80}, expected a positive integer")
        if factor is None and kind == "yarn":
            factor = max_position / original
        scale = self.number("factor", {"factor": factor})
        return RopeSpec(
            theta,
            scaling=kind,
            factor=scale,
            original_max_positions=original,
            low_freq_factor=self.number("low_freq_factor", settings, 1.0),
            high_freq_factor=self.number("high_freq_factor", settings, 4.0),
            beta_fast=self.number("beta_fast", settings, 32.0),
            beta_slow=self.number("beta_slow", settings, 1.0),
            truncate=settings.get("truncate", True) is not False,
            attention_factor=self._attention_factor(settings, scale) if kind == "yarn" else None,
        )

    def _attention_factor(self, settings: Json, factor: float) -> float | None:
        if settings.get("attention_factor") is not None:
            return self.number("attention_factor", settings)
        if not (settings.get("mscale") and settings.get("mscale_all_dim")) or factor <= 1:
            return None
        above = 0.1 * self.number("mscale", settings) * math.log(factor) + 1.0
        below = 0.1 * self.number("mscale_all_dim", settings) * math.log(factor) + 1.0
        return above / below


def _dtype_of(content: Json) -> dict[str, Any]:
    dtype = content.get("dtype") or content.get("torch_dtype")
    return {} if dtype is None else {"dtype": dtype}


def _refuse_quantized(path: Path, content: Json) -> None:
    settings = content.get("quantization_config")
    if settings:
        method = settings.get("quant_method", "unknown") if isinstance(settings, dict) else "unknown"
        raise ModelLoadError(
            f"{path}: quantised safetensors ({method!r:.80}) are not supported; use the original or a GGUF file"
        )
