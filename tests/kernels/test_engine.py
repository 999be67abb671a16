"""The CUDA engine over these kernels, in every family, says what the reference engine says."""

from __future__ import annotations

import pytest
import torch

from engine.engines import NUM_PAGES, PAGE_SIZE, SAMPLED
from engine.random_models import SPECS, random_weights
from engine.step_driver import Driver, Sequence
from twinpath.contracts import Engine
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.weights import pack_weights
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_memory import ReferenceOptions

PROMPTS = [list(range(3, 28)), [90, 17, 4]]


def answers(engine: Engine) -> list[list[int]]:
    """Two requests together, one sampled: prefill in two chunks, decode beside it, tokens pending."""
    driver = Driver(engine)
    first, second = driver.sequence(2, PROMPTS[0]), driver.sequence(0, PROMPTS[1], **SAMPLED)
    inits: list[Sequence] = [first, second]
    while len(second.outputs) < 3:
        driver.run([driver.chunk(s, 17) for s in (first, second)], inits=inits)
        inits = []
    engine.close()
    return [first.outputs, second.outputs]


#: Every feature once; the interpreter takes seconds for each.
FAMILIES = list(SPECS) if torch.cuda.is_available() else ["qwen2", "gemma3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_the_reference(family: str, device: torch.device) -> None:
    spec = SPECS[family]
    weights = random_weights(spec)
    reference = ReferenceOptions(page_size=PAGE_SIZE, num_pages=NUM_PAGES, max_slots=6, max_step_tokens=64)
    options = CudaOptions(
        device="cuda" if device.type == "cuda" else "cpu",
        graphs=False,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        max_slots=6,
        max_step_tokens=64,
    )
    packed = pack_weights(spec, weights, device, torch.float32, spec.max_position)
    assert answers(CudaEngine(packed, options)) == answers(ReferenceEngine(spec, weights, reference))
