"""`ModelSpec` from GGUF metadata (llama, qwen2, qwen3, gemma3 architectures)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from twinpath.errors import ModelLoadError
from twinpath.model.dequant import dequantize
from twinpath.model.gguf import GgufArray, GgufFile
from twinpath.model.spec import MAX_LAYERS, ModelSpec, RopeSpec
from twinpath.model.tensors import quoted

Architecture = Literal["llama", "qwen2", "qwen3", "gemma3"]
_ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "gemma3")

#: Gemma 3 files may leave these out; the values are llama.cpp's.
_GEMMA3_WINDOW_PERIOD = 6
_GEMMA3_LOCAL_THETA = 10_000.0
#: Gemma 3 27B scales attention by its hidden size per head, the smaller ones by the head size; depth tells which.
_GEMMA3_27B_LAYERS = 62


def spec_from_gguf(file: GgufFile) -> ModelSpec:
    """Raises: ModelLoadError naming the architecture, key or feature that cannot be used."""
    return _Reader(file).spec()


class _Reader:
    """Reads `<architecture>.<key>` metadata of one file."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        name = file.text("general.architecture")
        found = [known for known in _ARCHITECTURES if known == name]
        if not found:
            raise self.error(
                f"architecture {quoted(str(name))} is not supported, supported are {', '.join(_ARCHITECTURES)}"
            )
        self.arch: Architecture = found[0]

    def error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.file.path}: {what}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.file.integer(f"{self.arch}.{key}")
        value = default if value is None else value
        if value is None:
            raise self.error(f"metadata '{self.arch}.{key}' is missing")
        if not 0 < value < 1 << 31:
            raise self.error(f"metadata '{self.arch}.{key}' is {value}, expected a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.file.number(f"{self.arch}.{key}")
        value = default if value is None else value
        if value is None:
            raise self.error(f"metadata '{self.arch}.{key}' is missing")
        if not (math.isfinite(value) and value > 0):
            raise self.error(f"metadata '{self.arch}.{key}' is {value}, expected a positive number")
        return value

    def spec(self) -> ModelSpec:
        self._refuse_unsupported()
        gemma = self.arch == "gemma3"
        num_layers = self.integer("block_count")
        if num_layers > MAX_LAYERS:
            raise self.error(f"metadata '{self.arch}.block_count' is {num_layers}, at most {MAX_LAYERS} are supported")
        hidden = self.integer("embedding_length")
        heads = self.integer("attention.head_count")
        head_dim = self._head_dim(hidden, heads)
        ropes = self._ropes(head_dim)
        windows = self._windows(num_layers)
        scale_dim = hidden // heads if gemma and num_layers == _GEMMA3_27B_LAYERS else head_dim
        return ModelSpec(
            family=self.arch,
            num_layers=num_layers,
            hidden_size=hidden,
            intermediate_size=self.integer("feed_forward_length"),
            num_heads=heads,
            num_kv_heads=self.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab_size=self.file.tensor("token_embd.weight").rows,
            max_position=self.integer("context_length"),
            norm_eps=self.number("attention.layer_norm_rms_epsilon"),
            tied_embeddings="output.weight" not in self.file.tensors,
            activation="gelu_tanh" if gemma else "silu",
            qkv_bias="blk.0.attn_q.bias" in self.file.tensors,
            o_bias="blk.0.attn_output.bias" in self.file.tensors,
            qk_norm=self.arch in ("qwen3", "gemma3"),
            sandwich_norms=gemma,
            embed_scale=math.sqrt(hidden) if gemma else 1.0,
            attn_scale=scale_dim**-0.5,
            ropes=ropes,
            layer_rope=tuple(int(gemma and window is not None) for window in windows),
            layer_window=windows,
        )

    def _refuse_unsupported(self) -> None:
        if self.file.integer(f"{self.arch}.expert_count"):
            raise self.error("mixture-of-experts models are not supported")
        for key in ("final_logit_softcapping", "attn_logit_softcapping"):
            if self.file.number(f"{self.arch}.{key}"):
                raise self.error(f"{key} is not supported")
        for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
            if isinstance(self.file.fields.get(f"{self.arch}.{key}"), GgufArray):
                raise self.error(f"'{self.arch}.{key}' varies by layer, which is not supported")

    def _head_dim(self, hidden: int, heads: int) -> int:
        head_dim = self.integer("attention.key_length", hidden // heads or None)
        if self.integer("attention.value_length", head_dim) != head_dim:
            raise self.error("key_length and value_length differ, which is not supported")
        rotated = self.integer("rope.dimension_count", head_dim)
        if rotated != head_dim:
            raise self.error(f"partial rotary embedding ({rotated} of {head_dim} dimensions) is not supported")
        return head_dim

    def _ropes(self, head_dim: int) -> tuple[RopeSpec, ...]:
        theta = self.number("rope.freq_base", 10_000.0)
        main = self._scaled_rope(theta)
        if "rope_freqs.weight" in self.file.tensors:
            factors = dequantize(self.file.tensor("rope_freqs.weight")).reshape(-1)
            if factors.size != head_dim // 2 or not np.all(np.isfinite(factors) & (factors > 0)):
                raise self.error(f"tensor 'rope_freqs.weight' must hold {head_dim // 2} positive factors")
            main = RopeSpec(theta, freq_factors=tuple(factors.tolist()))
        if self.arch != "gemma3":
            return (main,)
        return (main, RopeSpec(self.number("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)))

    def _scaled_rope(self, theta: float) -> RopeSpec:
        kind = self.file.text(f"{self.arch}.rope.scaling.type") or "none"
        if kind == "none":
            legacy = self.number("rope.scale_linear", 1.0)
            return RopeSpec(theta) if legacy == 1.0 else RopeSpec(theta, scaling="linear", factor=legacy)
        factor = self.number("rope.scaling.factor", 1.0)
        if kind == "linear":
            return RopeSpec(theta, scaling="linear", factor=factor)
        if kind != "yarn":
            raise self.error(f"rope scaling {quoted(kind)} is not supported, supported are none, linear, yarn")
        magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        return RopeSpec(
            theta,
            scaling="yarn",
            factor=factor,
            original_max_positions=self.integer("rope.scaling.original_context_length"),
            beta_fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=magnitude * self.number("rope.scaling.attn_factor", 1.0),
        )

    def _windows(self, num_layers: int) -> tuple[int | None, ...]:
        key = f"{self.arch}.attention.sliding_window"
        # A zero means "no window" in files that always write the key; qwen files carry it though the model does not use
        # it.
        if self.arch in ("qwen2", "qwen3") or not self.file.integer(key):
            return (None,) * num_layers
        window = self.integer("attention.sliding_window")
        if self.arch == "llama":
            return (window,) * num_layers
        return tuple(window if local else None for local in self._window_pattern(num_layers))

    def _window_pattern(self, num_layers: int) -> Sequence[bool]:
        """Which layers are local: every n-th is global, or as the file lists them."""
        key = f"{self.arch}.attention.sliding_window_pattern"
        if isinstance(self.file.fields.get(key), GgufArray):
            pattern = self.file.numbers(key)
            if pattern is None or pattern.size != num_layers:
                raise self.error(f"metadata '{key}' must have {num_layers} items")
            return [bool(local) for local in pattern.tolist()]
        period = self.integer("attention.sliding_window_pattern", _GEMMA3_WINDOW_PERIOD)
        return [(layer + 1) % period != 0 for layer in range(num_layers)]
