"""A decode step by library products says what the chain says, on the CPU under Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from benchmarks.gpu_models import GEMMA3_1B, QWEN25_7B, with_layers

from twinpath.model.spec import ModelSpec

if not find_spec("triton"):
    pytest.skip("needs Triton", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("kernels/test_persistent_step.py compares the two on a card", allow_module_level=True)

from twinpath.engine.cuda import tuning
from twinpath.engine.cuda.decode import DecodeStep
from twinpath.engine.cuda.weights import allocate_kv, random_weights

CPU = torch.device("cpu")
NUM_PAGES = 8
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
#: Biases, ids beyond the argmax's first block; and two windows, norms of heads and of what attention and MLP give.
SPECS = [
    replace(with_layers(QWEN25_7B, 2), vocab_size=4100, **SMALL),
    replace(with_layers(GEMMA3_1B, 2), vocab_size=300, layer_window=(64, None), layer_rope=(0, 1), **SMALL),
]


def outcome(spec: ModelSpec, *, by_products: bool) -> tuple[torch.Tensor, list[int], list[int]]:
    weights = random_weights(spec, CPU, torch.float32, 128)
    weights.head[-1], weights.head[-2] = weights.head[3] * 99, weights.head[3] * -99  # The best is one of the last two.
    kv = allocate_kv(spec, NUM_PAGES * 2, 16, CPU, torch.float32)
    generator = torch.Generator().manual_seed(1)
    for part in (*kv.k, *kv.v):
        part.normal_(generator=generator)
    step = DecodeStep(weights, kv, NUM_PAGES, max_batch=16, min_product_rows=1 if by_products else 99)
    positions = [5, -1, 100]
    for row, position in enumerate(positions):
        step.buffers.positions[row] = position
        step.buffers.tokens[row] = 7 * row + 3
        step.buffers.block_tables[row] = torch.arange(NUM_PAGES) * 2 + row % 2
    step.launch(3)
    logits = step.buffers.logits[:3].clone()
    step.choose_greedy(3)
    return logits[[0, 2]], step.buffers.argmax[[0, 2]].tolist(), step.buffers.positions[:3].tolist()


@pytest.mark.parametrize("spec", SPECS, ids=["biases", "norms and windows"])
def test_products_and_chain_agree(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_MAX_SPLITS", 4)  # A card takes 32 at once, the interpreter one after another.
    right, got = (outcome(spec, by_products=choice) for choice in (False, True))
    torch.testing.assert_close(got[0], right[0], rtol=1e-4, atol=1e-4)
    assert got[1] == got[0].argmax(1).tolist() and min(got[1]) >= spec.vocab_size - 2
    assert got[2] == [6, -1, 101]
