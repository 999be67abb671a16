"""Settings of the CUDA engine and what fits its card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from twinpath.engine.cuda.forward import FEW_ROWS, forward_bytes
from twinpath.engine.cuda.weights import PackedWeights
from twinpath.errors import UserError
from twinpath.kernels.paged_attention.spec import LANES, part_bytes
from twinpath.kernels.prefill_rows.spec import HeadShape
from twinpath.kernels.sampler.spec import state_bytes
from twinpath.model.spec import ModelSpec

#: For graphs, the library's workspaces, compiled kernels and what the allocator rounds up.
_MARGIN_BYTES = 2 << 30
#: Pages for this many tokens where memory does not decide (tests on the CPU).
_DEFAULT_POOL_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """What `CudaEngine` needs beside the model."""

    device: Literal["cuda", "cpu"] = "cuda"
    #: Triton kernels, or their plain twins.
    kernels: Literal["triton", "plain"] = "triton"
    #: Capture decode steps and short prefills; decode then runs the fused step.
    graphs: bool = True
    page_size: int = 16
    #: None: what free memory allows.
    num_pages: int | None = None
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    max_slots: int = 64
    max_step_tokens: int = 2048
    depth: int = 2
    #: A row's logits do not depend, bit for bit, on its batch, on how its prompt was cut, on what was cached: slower.
    batch_invariant: bool = False
    #: Ranks that share the model meet inside the persistent step. Off until it has run on two cards: the chain serves.
    shared_persistent: bool = False


def page_bytes(spec: ModelSpec, page_size: int, value_bytes: int) -> int:
    """Bytes of one page over all layers, keys and values."""
    return page_size * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * value_bytes


def fitting_pages(weights: PackedWeights, options: CudaOptions, max_model_len: int) -> int:
    """Pages for the memory that is left once the weights are loaded and everything else has its share.

    Raises:
        UserError: not one page fits.
    """
    spec, slots = weights.spec, options.max_slots
    if options.device == "cpu":
        return -(-max(_DEFAULT_POOL_TOKENS, max_model_len) // options.page_size)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    reserve = reserve_bytes(weights, options, max_model_len)
    left = int(total * options.gpu_memory_utilization) - (total - free) - reserve
    num_pages = left // page_bytes(spec, options.page_size, weights.embed.element_size())
    if num_pages <= 0:
        raise UserError(
            f"no GPU memory is left for KV: {free / 1e9:.1f} of {total / 1e9:.1f} GB are free, steps keep "
            f"{reserve / 1e9:.1f} GB, gpu_memory_utilization is {options.gpu_memory_utilization:g}; "
            f"lower max_num_batched_tokens ({options.max_step_tokens}) or max_num_seqs ({slots})"
        )
    return num_pages


def reserve_bytes(weights: PackedWeights, options: CudaOptions, max_model_len: int) -> int:
    """What steps hold beside weights and pages: rows, sampler, logits under way, residuals of sliced chunks."""
    spec, slots = weights.spec, options.max_slots
    pages = -(-max_model_len // options.page_size)
    residuals = (1 + NUM_RESIDUALS) * options.max_step_tokens * spec.hidden_size * 4
    logits = (options.depth + 3) * slots * spec.vocab_size * 4
    sampler = state_bytes(slots, slots, spec.vocab_size, max_model_len) + slots * pages * 12
    # Keys and values of one long request, gathered for the library's attention; and its outputs.
    context = 2 * max_model_len * spec.num_kv_heads * spec.head_dim * weights.embed.element_size()
    context += 3 * options.max_step_tokens * spec.num_heads * spec.head_dim * weights.embed.element_size()
    shape = HeadShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, options.page_size, spec.norm_eps)
    max_tiles = options.max_step_tokens * spec.num_heads // (LANES * spec.num_kv_heads) + slots
    parts = part_bytes(shape, min(FEW_ROWS, options.max_step_tokens), max_tiles)
    forward = forward_bytes(weights, options.max_step_tokens, slots)
    return forward + residuals + logits + sampler + context + parts + _MARGIN_BYTES


#: Chunks that may be between slices at the same time.
NUM_RESIDUALS = 3


def describe_memory(weights: PackedWeights, options: CudaOptions, num_pages: int, reserve: int) -> dict[str, str]:
    """Lines for the start-up table."""
    per_page = page_bytes(weights.spec, options.page_size, weights.embed.element_size())
    facts = {"dtype": str(weights.embed.dtype).removeprefix("torch.")}
    facts["KV memory"] = f"{num_pages * per_page / 1e6:,.0f} MB"
    facts["step memory"] = f"{reserve / 1e6:,.0f} MB"
    if options.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        facts["device"] = torch.cuda.get_device_name()
        facts["gpu memory"] = f"{(total - free) / 1e9:.1f} of {total / 1e9:.1f} GB in use"
    return facts
