"""The CUDA engine with its graphs, in bfloat16 on the card: what the shared suite, in float32, cannot say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.random_models import SPECS, random_weights
from engine.step_driver import Driver, Sequence
from parity.reference_rows import open_model
from twinpath.config import EngineConfig
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.load import open_cuda
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.weights import pack_weights
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_memory import ReferenceOptions
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights

pytestmark = pytest.mark.gpu

NUM_TOKENS = 12
PROMPTS = [[int(i) for i in np.random.default_rng(n).integers(3, 900, n)] for n in (5, 40, 17, 100, 3)]
SAMPLED = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 3, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def model() -> tuple[ModelSpec, Weights]:
    spec = replace(
        SPECS["llama"],
        hidden_size=512,
        intermediate_size=1024,
        num_heads=8,
        head_dim=64,
        attn_scale=0.125,
        vocab_size=1000,
        max_position=512,
    )
    return spec, random_weights(spec)


@pytest.fixture
def engine(model: tuple[ModelSpec, Weights]) -> CudaEngine:
    spec, weights = model
    packed = pack_weights(spec, weights, torch.device("cuda"), torch.bfloat16, spec.max_position)
    options = CudaOptions(num_pages=128, max_slots=8, max_step_tokens=256, depth=2)
    return CudaEngine(packed, options)


def settings(index: int) -> dict[str, object]:
    return SAMPLED if index % 2 else {}


def decode_two_deep(driver: Driver, sequences: list[Sequence], num_tokens: int) -> None:
    """Steps of everybody, the next submitted before the last one's tokens are known."""
    num_submitted = num_done = 0
    while num_done < num_tokens:
        while num_submitted < num_tokens and num_submitted - num_done < driver.engine.info.depth:
            driver.engine.submit(driver.plan([driver.pending(s) for s in sequences]))
            num_submitted += 1
        result = driver.result()
        assert not result.failures
        for sequence, token in zip(sequences, result.tokens.tolist(), strict=True):
            sequence.tokens.append(token)
        num_done += 1


def test_company_changes_no_token(engine: CudaEngine) -> None:
    """Prompts alone, then decoded together or alone: the step's sums have one order for one to eight rows."""
    driver = Driver(engine)
    right = []
    for index, prompt in enumerate(PROMPTS):
        sequence = driver.sequence(7, prompt, **settings(index))
        driver.run([driver.chunk(sequence)], inits=[sequence])
        decode_two_deep(driver, [sequence], NUM_TOKENS)
        right.append(sequence.outputs)
        driver.free(sequence)
    sequences = [driver.sequence(i, prompt, **settings(i)) for i, prompt in enumerate(PROMPTS)]
    for sequence in sequences:
        driver.run([driver.chunk(sequence)], inits=[sequence])
    decode_two_deep(driver, sequences, NUM_TOKENS)
    assert [s.outputs for s in sequences] == right
    engine.close()


def test_logprobs_are_near_those_of_the_reference(engine: CudaEngine, model: tuple[ModelSpec, Weights]) -> None:
    """Prefill through graphs and decode through the fused step, against float32 on the CPU, token by token."""
    options = ReferenceOptions(num_pages=128, max_slots=8, max_step_tokens=256)
    both = [Driver(engine, logprobs=0), Driver(ReferenceEngine(*model, options), logprobs=0)]
    for prompt in PROMPTS:
        sequences = [driver.sequence(0, prompt) for driver in both]
        inits = True
        for _ in range(NUM_TOKENS):
            entries = []
            for driver, sequence in zip(both, sequences, strict=True):
                result = driver.run([driver.chunk(sequence)], inits=[sequence] if inits else [])
                entries.append(result.logprobs[0][0])
            inits = False
            if entries[0].token_id != entries[1].token_id:
                break  # From here on they say different things.
            # bfloat16 keeps 8 bits; logits of this model reach 10.
            assert entries[0].logprob == pytest.approx(entries[1].logprob, abs=0.15)
        for driver, sequence in zip(both, sequences, strict=True):
            driver.free(sequence)
    engine.close()


def test_steps_allocate_nothing(engine: CudaEngine) -> None:
    driver = Driver(engine)
    sequences = [driver.sequence(i, prompt, **settings(i)) for i, prompt in enumerate(PROMPTS)]
    driver.run([driver.chunk(s) for s in sequences], inits=sequences)
    decode_two_deep(driver, sequences, 3)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    decode_two_deep(driver, sequences, 20)
    assert torch.cuda.memory_reserved() == before
    engine.close()


def test_a_file_opens_in_its_own_sixteen_bits_and_streams_up(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from parity import tiny_models

    tiny_models.build("qwen3").bfloat16().save_pretrained(tmp_path)
    config = EngineConfig(tmp_path, device="cuda", kv_cache_mb=64)
    engine = open_cuda(config, 8, lambda window: min(window, 128), lambda *_: None)
    assert "bfloat16" in engine.info.description
    assert "GB/s" in engine.facts["weights to the GPU"]
    right = open_model(tmp_path)
    packed = pack_weights(*right, torch.device("cuda"), torch.bfloat16, right[0].max_position)
    assert torch.equal(engine.weights.layers[0].qkv, packed.layers[0].qkv)
    assert torch.equal(engine.weights.embed, packed.embed)
    driver = Driver(engine)
    assert len(driver.generate(driver.sequence(0, [i % 150 for i in PROMPTS[1]]), 5)) == 5
    engine.close()
