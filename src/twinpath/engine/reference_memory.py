"""Settings of the reference engine and how many KV pages its device can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from twinpath.errors import UserError
from twinpath.model.spec import ModelSpec

#: Pages for this many tokens where memory does not decide (CPU: touched lazily, so unused pages cost nothing).
_DEFAULT_POOL_TOKENS = 16_384

Dtype = Literal["float32", "bfloat16", "float16"]

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """What `ReferenceEngine` needs beside the model."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Dtype = "float32"
    page_size: int = 16
    #: None: on CUDA what free memory allows, on CPU 16,384 tokens or the window, whichever is more.
    num_pages: int | None = None
    #: Share of the device's memory that weights, pages and activations may fill together.
    gpu_memory_utilization: float = 0.9
    #: None: the model's own window.
    max_model_len: int | None = None
    max_slots: int = 64
    max_step_tokens: int = 512
    depth: int = 1


def page_bytes(spec: ModelSpec, options: ReferenceOptions) -> int:
    """Bytes of one page over all layers, keys and values."""
    values_per_token = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    return options.page_size * values_per_token * _DTYPE_BYTES[options.dtype]


def activation_bytes(spec: ModelSpec, options: ReferenceOptions, max_model_len: int) -> int:
    """Upper estimate of what one full step holds beside weights and pages.

    Per row: the residual, q, k, v, the attention output and the MLP's two halves in float32, twice over (in and out of
    an operation). Per position of one segment: keys and values as gathered and once for each query head, and the mask
    for every row (a byte, then a float). And logits, of 64 prompt rows or one per slot.
    """
    heads = spec.num_heads + 2 * spec.num_kv_heads
    per_row = 4 * (4 * spec.hidden_size + 2 * heads * spec.head_dim + 3 * spec.intermediate_size)
    per_position = 2 * heads * spec.head_dim * _DTYPE_BYTES[options.dtype] + 5 * options.max_step_tokens
    logits = 12 * max(64, options.max_slots) * spec.vocab_size
    return 2 * options.max_step_tokens * per_row + max_model_len * per_position + logits


def num_pages_that_fit(
    free_bytes: int, total_bytes: int, reserve_bytes: int, bytes_per_page: int, utilization: float
) -> int:
    """Pages for the memory left: `utilization` of the device, less what is taken already, less `reserve_bytes`."""
    taken = total_bytes - free_bytes
    return max(0, int(total_bytes * utilization) - taken - reserve_bytes) // bytes_per_page


def default_num_pages(spec: ModelSpec, options: ReferenceOptions, max_model_len: int) -> int:
    """Pool size when none was asked for; on CUDA call it after the weights are loaded. It may be less than the window.

    Raises:
        UserError: the device cannot hold one page.
    """
    if options.device == "cpu":
        return -(-max(_DEFAULT_POOL_TOKENS, max_model_len) // options.page_size)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    reserve = activation_bytes(spec, options, max_model_len)
    num_pages = num_pages_that_fit(free, total, reserve, page_bytes(spec, options), options.gpu_memory_utilization)
    if num_pages == 0:
        raise UserError(
            f"no GPU memory is left for KV: {free / 1e9:.1f} of {total / 1e9:.1f} GB are free, a step keeps "
            f"{reserve / 1e9:.1f} GB, gpu_memory_utilization is {options.gpu_memory_utilization:g}; "
            "lower max_model_len or max_num_batched_tokens"
        )
    return num_pages


def describe_memory(spec: ModelSpec, options: ReferenceOptions, num_pages: int) -> dict[str, str]:
    """Lines for the start-up table."""
    pool_mb = num_pages * page_bytes(spec, options) / 1e6
    facts = {
        "device": options.device if options.device == "cpu" else torch.cuda.get_device_name(),
        "dtype": options.dtype,
        "KV memory": f"{pool_mb:,.0f} MB" + (", touched as used" if options.device == "cpu" else ""),
    }
    if options.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        facts["gpu memory"] = f"{(total - free) / 1e9:.1f} of {total / 1e9:.1f} GB in use"
    return facts
