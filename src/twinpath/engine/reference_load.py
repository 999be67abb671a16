"""From the settings of an engine process to a loaded `ReferenceEngine`."""

from __future__ import annotations

from dataclasses import replace

import torch

from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_memory import Dtype, ReferenceOptions, page_bytes
from twinpath.errors import UserError
from twinpath.model.files import files_at
from twinpath.model.tensors import Report, ReportedWeights, Weights, WeightType
from twinpath.model.weights import load_weights, read_spec

#: Rows of one step: on CUDA enough to keep it busy, on CPU few enough that an interrupt between layers comes soon.
_STEP_TOKENS = {"cpu": 256, "cuda": 2048}
#: Plans outstanding: on CUDA one is prepared while the other runs.
_DEPTH = {"cpu": 1, "cuda": 2}


def open_reference(config: EngineConfig, scheduler: SchedulerConfig, report: Report) -> ReferenceEngine:
    """Load the model `config` names; `report(done, total, what)` is called as tensors arrive on the device.

    Raises:
        UserError: no CUDA device, or the model (or its KV) does not fit it.
        ModelLoadError: the model's files cannot be used.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but torch sees no CUDA device")
    files = files_at(config.model_path)
    spec = read_spec(files)
    weights = load_weights(files, spec)
    if config.max_model_len is not None and config.max_model_len > spec.max_position:
        raise UserError(f"max_model_len {config.max_model_len} is beyond the model's window of {spec.max_position}")
    options = ReferenceOptions(
        device=config.device,
        dtype=choose_dtype(config, weights),
        page_size=config.page_size,
        gpu_memory_utilization=config.gpu_memory_utilization,
        max_model_len=config.max_model_len,
        max_slots=scheduler.max_num_seqs,
        max_step_tokens=_step_tokens(config, scheduler, spec.max_position),
        depth=_DEPTH[config.device],
    )
    if config.kv_cache_mb is not None:
        num_pages = config.kv_cache_mb * 2**20 // page_bytes(spec, options)
        if num_pages == 0:
            raise UserError(f"kv_cache_mb {config.kv_cache_mb} holds no page of {config.page_size} tokens")
        options = replace(options, num_pages=num_pages)
    try:
        return ReferenceEngine(spec, ReportedWeights(weights, report), options)
    except torch.OutOfMemoryError as error:
        raise UserError(f"the model does not fit the GPU's memory in {options.dtype}: {error}") from error


def choose_dtype(config: EngineConfig, weights: Weights) -> Dtype:
    """`auto` is float32 on CPU; on CUDA the checkpoint's own 16-bit type, bfloat16 for every other."""
    if config.dtype != "auto":
        return config.dtype
    if config.device == "cpu":
        return "float32"
    return "float16" if weights["embed"].type == WeightType.F16 else "bfloat16"


def _step_tokens(config: EngineConfig, scheduler: SchedulerConfig, max_position: int) -> int:
    window = config.max_model_len or max_position
    if not scheduler.enable_chunked_prefill:
        return max(window, scheduler.max_num_batched_tokens or 0)
    return scheduler.max_num_batched_tokens or min(_STEP_TOKENS[config.device], max(window, scheduler.max_num_seqs))
