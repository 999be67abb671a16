"""The batch-invariant CUDA engine: the same logits, bit for bit, whatever else happens to a request."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from benchmarks.gpu_models import with_layers

from engine.engines import NUM_PAGES, PAGE_SIZE, PROMPTS
from engine.random_models import SPECS, random_weights
from engine.step_driver import Driver, Sequence
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.weights import pack_weights
from twinpath.kernels.prefill_attention.spec import AttentionTiling
from twinpath.types import TokenLogprob

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is made for Linux only")

PROMPT = PROMPTS[0]
NUM_TOKENS = 2
#: Smaller than a card wants, for the interpreter.
SMALL = AttentionTiling(lanes=16, keys=32)


@pytest.fixture(scope="module")
def engine() -> CudaEngine:
    """On a card in bfloat16 with captured steps, else in float32 under Triton's interpreter."""
    on_card = torch.cuda.is_available()
    device, dtype = torch.device("cuda" if on_card else "cpu"), torch.bfloat16 if on_card else torch.float32
    spec = with_layers(SPECS["qwen2"], 1)
    options = CudaOptions(
        device="cuda" if on_card else "cpu",
        graphs=on_card,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        max_slots=6,
        max_step_tokens=128,
        batch_invariant=True,
    )
    packed = pack_weights(spec, random_weights(spec), device, dtype, spec.max_position)
    return CudaEngine(packed, options, None if on_card else SMALL)


def driver_of(engine: CudaEngine) -> Driver:
    return Driver(engine, logprobs=20)


def follow(
    driver: Driver, sequence: Sequence, others: list[Sequence], chunk_tokens: int | None = None
) -> list[TokenLogprob]:
    """Entries of `sequence`'s tokens, `others` going along in every step."""
    entries: list[TokenLogprob] = []
    inits = [sequence, *others]
    while len(entries) < NUM_TOKENS:
        segments = [*(driver.chunk(other, 5) for other in others), driver.chunk(sequence, chunk_tokens)]
        result = driver.run(segments, inits=inits)
        inits = []
        entries += result.logprobs.get(len(others), [])
    return entries


@pytest.fixture(scope="module")
def alone(engine: CudaEngine) -> list[TokenLogprob]:
    driver = driver_of(engine)
    return follow(driver, driver.sequence(0, PROMPT), [])


def test_beside_others_and_in_chunks(engine: CudaEngine, alone: list[TokenLogprob]) -> None:
    driver = driver_of(engine)
    others = [driver.sequence(1, PROMPTS[2]), driver.sequence(2, PROMPTS[1])]
    assert follow(driver, driver.sequence(3, PROMPT), others, chunk_tokens=15) == alone


def test_behind_a_cached_prefix(engine: CudaEngine, alone: list[TokenLogprob]) -> None:
    driver = driver_of(engine)
    first = driver.sequence(0, PROMPT)
    follow(driver, first, [])
    second = driver.sequence(1, PROMPT)
    second.pages, second.num_computed = first.pages[:2], 2 * PAGE_SIZE
    assert follow(driver, second, []) == alone


def test_after_a_preemption(engine: CudaEngine, alone: list[TokenLogprob]) -> None:
    """Keys of generated tokens are computed again as prompt rows, elsewhere."""
    driver = driver_of(engine)
    sequence = driver.sequence(0, PROMPT)
    driver.run([driver.chunk(sequence)], inits=[sequence])
    driver.free(sequence)
    sequence.slot = 4
    result = driver.run([driver.chunk(sequence)], inits=[sequence])
    assert result.logprobs[0] == alone[1:]
