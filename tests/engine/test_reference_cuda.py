"""The reference on CUDA against the reference on CPU, float32 without TF32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.random_models import SPECS, VOCAB_SIZE, random_weights
from engine.step_driver import Driver
from parity.reference_rows import ReferenceRows, relative_error
from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_load import open_reference
from twinpath.engine.reference_memory import ReferenceOptions

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-4
SEQUENCES = [np.random.default_rng(n).integers(0, VOCAB_SIZE, n).tolist() for n in (90, 3, 41)]


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """Matrix products in true float32: TF32 keeps ten bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("chunk_tokens", [None, 17, 1])
@pytest.mark.parametrize("family", list(SPECS))
def test_float32_logits_are_those_of_the_cpu(family: str, chunk_tokens: int | None) -> None:
    spec = SPECS[family]
    weights = random_weights(spec)
    right = ReferenceRows(spec, weights).logits(SEQUENCES)
    for logits, wanted in zip(ReferenceRows(spec, weights, "cuda").logits(SEQUENCES, chunk_tokens), right, strict=True):
        assert relative_error(logits, wanted) <= TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", list(SPECS))
def test_sixteen_bits_choose_the_same_token_where_it_is_not_close(family: str, dtype: torch.dtype) -> None:
    spec = SPECS[family]
    weights = random_weights(spec)
    logits = np.concatenate(ReferenceRows(spec, weights, "cuda", dtype).logits(SEQUENCES))
    right = np.concatenate(ReferenceRows(spec, weights).logits(SEQUENCES))
    assert np.isfinite(logits).all()
    best = np.sort(right, axis=-1)
    # bfloat16 keeps 8 bits: after three layers the logits are off by some percent of their range.
    clear = best[:, -1] - best[:, -2] > 0.1 * np.abs(right).max()
    assert clear.any()
    np.testing.assert_array_equal(logits.argmax(-1)[clear], right.argmax(-1)[clear])


def test_a_directory_opens_in_its_own_sixteen_bits_two_plans_deep(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from parity import tiny_models

    tiny_models.build("qwen3").bfloat16().save_pretrained(tmp_path)
    config = EngineConfig(tmp_path, kind="reference", device="cuda", kv_cache_mb=64)
    engine = open_reference(config, SchedulerConfig(), lambda *_: None)
    assert "bfloat16 on cuda" in engine.info.description
    assert engine.info.depth == 2
    driver = Driver(engine)
    assert len(driver.generate(driver.sequence(0, SEQUENCES[0]), 5)) == 5
    engine.close()


def test_pages_fill_the_free_memory_and_the_engine_runs_on_the_last_of_them() -> None:
    spec = SPECS["llama"]
    # A small share, so that the pool is far from what other users of the device need.
    taken = 1 - torch.cuda.mem_get_info()[0] / torch.cuda.mem_get_info()[1]
    options = ReferenceOptions(device="cuda", dtype="bfloat16", page_size=32, gpu_memory_utilization=taken + 0.05)
    engine = ReferenceEngine(spec, random_weights(spec), options)
    assert engine.info.num_pages * 32 > 16_384
    driver = Driver(engine)
    driver.free_pages = [engine.info.num_pages - 1, 0, engine.info.num_pages - 2]
    assert len(driver.generate(driver.sequence(0, SEQUENCES[0]), 3)) == 3
    assert "in use" in engine.facts["gpu memory"]
    engine.close()
