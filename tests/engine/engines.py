"""The engines that the contract suite runs over, and the model they all hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch

from engine.random_models import SPECS, VOCAB_SIZE, random_weights
from engine.step_driver import Driver
from twinpath.contracts import Engine
from twinpath.engine.cpu import CpuEngine, CpuOptions
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.weights import pack_weights
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_memory import ReferenceOptions
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights

#: Its embedding row is not finite: whoever uses it must fail alone. Nobody samples it (see `driver_of`).
POISON = VOCAB_SIZE - 1
PROMPTS = {0: list(range(3, 40)), 1: [90, 17, 4], 2: [int(i) for i in np.random.default_rng(3).integers(3, 150, 26)]}
SAMPLED = {
    "temperature": 1.3,
    "top_p": 0.95,
    "seed": 77,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
}
PAGE_SIZE = 16
NUM_PAGES = 48
Build = Callable[[ModelSpec, Weights], Engine]


def _reference(depth: int, device: str = "cpu") -> Build:
    def build(spec: ModelSpec, weights: Weights) -> Engine:
        options = ReferenceOptions(
            device="cuda" if device == "cuda" else "cpu",
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            max_slots=6,
            max_step_tokens=128,
            depth=depth,
        )
        return ReferenceEngine(spec, weights, options)

    return build


def _native(isa: str) -> Build:
    def build(spec: ModelSpec, weights: Weights) -> Engine:
        options = CpuOptions(
            threads=2, isa=isa, page_size=PAGE_SIZE, num_pages=NUM_PAGES, max_slots=6, max_step_tokens=128
        )
        return CpuEngine(spec, weights, options)

    return build


def _cuda(kernels: Literal["plain", "triton"], device: Literal["cpu", "cuda"], depth: int = 3) -> Build:
    def build(spec: ModelSpec, weights: Weights) -> Engine:
        options = CudaOptions(
            device=device,
            kernels=kernels,
            graphs=False,
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            max_slots=6,
            max_step_tokens=128,
            depth=depth,
        )
        # float32 on both sides: the suite compares tokens of rows that met other rows on the way.
        packed = pack_weights(spec, weights, torch.device(device), torch.float32, spec.max_position)
        return CudaEngine(packed, options)

    return build


ENGINES = [
    pytest.param(_reference(1), id="reference-1"),
    pytest.param(_reference(3), id="reference-3"),
    pytest.param(_native("auto"), id="native"),
    pytest.param(_native("portable"), id="native-portable"),
    pytest.param(_reference(3, "cuda"), id="reference-cuda-3", marks=pytest.mark.gpu),
    pytest.param(_cuda("plain", "cpu"), id="cuda-plain"),
    pytest.param(_cuda("triton", "cuda"), id="cuda", marks=pytest.mark.gpu),
]


def poisoned_model() -> tuple[ModelSpec, Weights]:
    """Sliding and full layers, so that stale or misplaced keys matter, and one poisoned token."""
    weights = random_weights(SPECS["qwen2"])
    weights["embed"].data[POISON].view(np.float32)[:] = np.nan
    return SPECS["qwen2"], weights


def driver_of(engine: Engine) -> Driver:
    return Driver(engine, logit_bias={POISON: -1000.0})


def alone(driver: Driver, prompt: list[int], num_tokens: int, **sampling: object) -> list[int]:
    """What one request gets when nobody else is there: prompt in one step, then token by token."""
    sequence = driver.sequence(5, prompt, **sampling)
    outputs = driver.generate(sequence, num_tokens)
    driver.free(sequence)
    return outputs
