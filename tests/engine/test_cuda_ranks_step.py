"""The decode step of a model that two ranks share, under Triton's interpreter: the whole model's logits and tokens."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from benchmarks.gpu_models import GEMMA3_1B, QWEN25_7B, with_layers

from engine.rank_threads import run_ranks
from twinpath.engine.cuda import tuning
from twinpath.engine.cuda.collectives import Collective
from twinpath.engine.cuda.shards import WHOLE
from twinpath.model.spec import ModelSpec

if not find_spec("triton"):
    pytest.skip("needs Triton", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("two ranks on a card are another test's", allow_module_level=True)

from twinpath.engine.cuda.decode import DecodeStep
from twinpath.engine.cuda.weights import allocate_kv, random_weights

CPU = torch.device("cpu")
SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
#: Biases, in the chain; norms of heads and of what attention and MLP give, in the chain and by products.
CASES = [
    (replace(with_layers(QWEN25_7B, 1), vocab_size=72, qkv_bias=True, o_bias=True, **SMALL), 99),
    (replace(with_layers(GEMMA3_1B, 1), vocab_size=72, **SMALL), 99),
    (replace(with_layers(GEMMA3_1B, 1), vocab_size=72, **SMALL), 1),
]


def outcome(spec: ModelSpec, min_product_rows: int, ranks: Collective | None) -> tuple[torch.Tensor, list[int]]:
    shard = WHOLE if ranks is None else ranks.shard
    weights = random_weights(spec, CPU, torch.float32, 32, shard=shard)
    kv = allocate_kv(weights.spec, 4, 16, CPU, torch.float32)
    step = DecodeStep(weights, kv, 2, max_batch=8, min_product_rows=min_product_rows, ranks=ranks)
    # Nothing is known of positions before these, so every rank's keys are zero alike.
    step.buffers.positions[:2] = torch.tensor([5, 17])
    step.buffers.tokens[:2] = torch.tensor([3, 60])
    step.buffers.block_tables[:2] = torch.tensor([[1, 0], [2, 3]])
    step.launch(2)
    step.choose_greedy(2)
    return step.buffers.logits[:2].clone(), step.buffers.argmax[:2].tolist()


@pytest.mark.parametrize(("spec", "min_product_rows"), CASES, ids=["biases", "norms", "products"])
def test_two_ranks_say_what_one_card_says(
    spec: ModelSpec, min_product_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_MAX_SPLITS", 2)  # The interpreter takes its time for each.
    right = outcome(spec, min_product_rows, None)
    first, second = run_ranks(2, lambda ranks: outcome(spec, min_product_rows, ranks))
    torch.testing.assert_close(first[0], right[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1] == first[0].argmax(1).tolist()
