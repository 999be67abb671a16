"""From the settings of an engine process to a loaded `CudaEngine`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from twinpath.config import EngineConfig
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.memory import CudaOptions, page_bytes
from twinpath.engine.cuda.shards import WHOLE, shard_spec
from twinpath.engine.cuda.upload import Uploader
from twinpath.engine.cuda.weights import pack_weights
from twinpath.errors import UserError
from twinpath.model.files import files_at
from twinpath.model.tensors import Report, ReportedWeights, Weights, WeightType
from twinpath.model.weights import load_weights, read_spec

if TYPE_CHECKING:
    from twinpath.engine.cuda.ranks import RankGroup

#: The card that the tilings were measured on, and the least that runs the kernels.
_TUNED_CARDS = ("H200",)
_LEAST_CAPABILITY = (8, 0)
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def open_cuda(
    config: EngineConfig,
    max_slots: int,
    step_tokens: Callable[[int], int],
    report: Report,
    ranks: RankGroup | None = None,
) -> CudaEngine:
    """Load the model `config` names, on the current card.

    Args:
        step_tokens: most tokens of one step, from the window in tokens.
        report: called with (done, total, what) as tensors arrive on the device.
        ranks: with whom the model is shared; this rank loads its part of it.

    Raises:
        UserError: no usable CUDA device, or the model (or its KV) does not fit it.
        ModelLoadError: the model's files cannot be used.
    """
    warning = check_card()
    files = files_at(config.model_path)
    spec = read_spec(files)
    if config.max_model_len is not None and config.max_model_len > spec.max_position:
        raise UserError(f"max_model_len {config.max_model_len} is beyond the model's window of {spec.max_position}")
    window = config.max_model_len or spec.max_position
    weights = load_weights(files, spec)
    dtype = _DTYPES[choose_dtype(config, weights)]
    shard = WHOLE if ranks is None else ranks.shard
    num_pages = None
    if config.kv_cache_mb is not None:
        num_pages = config.kv_cache_mb * 2**20 // page_bytes(shard_spec(spec, shard), config.page_size, dtype.itemsize)
        if num_pages == 0:
            raise UserError(f"kv_cache_mb {config.kv_cache_mb} holds no page of {config.page_size} tokens")
    options = CudaOptions(
        page_size=config.page_size,
        num_pages=num_pages,
        gpu_memory_utilization=config.gpu_memory_utilization,
        max_model_len=config.max_model_len,
        max_slots=max_slots,
        max_step_tokens=step_tokens(window),
        graphs=dtype != torch.float32,
        batch_invariant=config.batch_invariant,
    )
    try:
        began_s = time.perf_counter()
        device = torch.device("cuda", torch.cuda.current_device())
        with Uploader(device, dtype) as upload:
            packed = pack_weights(spec, ReportedWeights(weights, report), device, dtype, window, upload.send, shard)
        loaded_s = time.perf_counter() - began_s
        engine = CudaEngine(packed, options, ranks=ranks)
    except torch.OutOfMemoryError as error:
        raise UserError(f"the model does not fit the GPU's memory in {dtype}: {error}") from error
    gigabytes = upload.num_bytes / 1e9
    engine.facts["weights to the GPU"] = f"{gigabytes:.1f} GB at {gigabytes / loaded_s:.1f} GB/s"
    if warning:
        engine.facts["warning"] = warning
    return engine


def check_card() -> str | None:
    """A warning for a card that runs but was not tuned for.

    Raises: UserError when there is no card, or one that cannot run the kernels.
    """
    if not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but torch sees no CUDA device")
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if capability < _LEAST_CAPABILITY:
        raise UserError(f"{name} has compute capability {capability[0]}.{capability[1]}; 8.0 is needed")
    if any(card in name for card in _TUNED_CARDS):
        return None
    return f"kernels were tuned on an H200; on {name} they are right, not tuned"


def choose_dtype(config: EngineConfig, weights: Weights) -> str:
    """`auto` is the checkpoint's own 16-bit type, bfloat16 for every other."""
    if config.dtype != "auto":
        return config.dtype
    return "float16" if weights["embed"].type == WeightType.F16 else "bfloat16"
