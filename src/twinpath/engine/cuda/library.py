"""Which attention serves prefill: the vendor's for long chunks, our CUDA kernel, or (neither) the operations'."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from twinpath.engine.cuda.forward import FEW_ROWS
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.weights import KvPool, PackedWeights
from twinpath.kernels.prefill_rows.spec import HeadShape

if TYPE_CHECKING:
    from twinpath.kernels.paged_attention.kernel import PagedAttention
    from twinpath.kernels.prefill_attention.library import LibraryAttention


def make_library(weights: PackedWeights, options: CudaOptions, max_model_len: int) -> LibraryAttention | None:
    """For 16-bit models without sliding windows on a card with cuDNN's newer kernels; every shape planned."""
    spec, dtype, device = weights.spec, weights.embed.dtype, weights.embed.device
    if device.type != "cuda" or not options.graphs or options.batch_invariant:
        return None
    if dtype == torch.float32 or any(spec.layer_window):
        return None
    if torch.cuda.get_device_capability(device) < (9, 0) or spec.head_dim not in (64, 128):
        return None
    from twinpath.kernels.prefill_attention.library import CHUNK_SIZES, LibraryAttention

    if options.max_step_tokens < CHUNK_SIZES[0]:
        return None
    shape = HeadShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, options.page_size, spec.norm_eps)
    library = LibraryAttention(shape, max_model_len, options.max_step_tokens, dtype, device)
    library.warm_up(spec.attn_scale)
    return library


def make_paged(
    weights: PackedWeights, kv: KvPool, options: CudaOptions, shape: HeadShape, max_tiles: int
) -> PagedAttention | None:
    """For models without sliding windows where the kernel knows their shape and the card; compiled (a second)."""
    spec, embed = weights.spec, weights.embed
    if options.kernels != "triton" or not options.graphs or options.batch_invariant or any(spec.layer_window):
        return None
    from twinpath.kernels.paged_attention.kernel import PagedAttention, is_supported

    if not is_supported(shape, embed.device, embed.dtype, max_tiles):
        return None
    return PagedAttention(shape, spec.attn_scale, list(zip(kv.k, kv.v, strict=True)), FEW_ROWS, max_tiles)
