"""Models cut over two and four ranks: the parts make up the whole, and together they say what the whole model says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.random_models import SPECS, random_weights
from engine.rank_threads import run_ranks
from twinpath.engine.cuda.collectives import Collective
from twinpath.engine.cuda.forward import Forward
from twinpath.engine.cuda.ops import plain_operations
from twinpath.engine.cuda.shards import Shard, ShardedWeights, check_divisible, part_of, shard_spec
from twinpath.engine.cuda.weights import allocate_kv, pack_weights
from twinpath.engine.cuda.weights import random_weights as random_packed
from twinpath.engine.reference_model import PagedCache, ReferenceModel
from twinpath.errors import UserError
from twinpath.kernels.prefill_attention.spec import AttentionTiling
from twinpath.kernels.prefill_rows.spec import Rows
from twinpath.model.dequant import dequantize
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights, WeightTensor, WeightType

CPU = torch.device("cpu")
PAGE_SIZE = 16
#: A prompt longer than the window, and two rows of another request.
TOKENS = [int(token) for token in np.random.default_rng(5).integers(3, 150, 23)]
NUM_FIRST = 21
TABLES = [np.array([4, 1], np.int32), np.array([2], np.int32)]


def shareable(family: str) -> ModelSpec:
    """Heads for four ranks, with two key heads: at four, two ranks have the same one."""
    return replace(SPECS[family], num_heads=8, num_kv_heads=2, intermediate_size=192)


LLAMA = shareable("llama")


def right_logits(spec: ModelSpec, weights: Weights) -> Tensor:
    model = ReferenceModel(spec, weights, CPU, torch.float32)
    batch = model.batch([0, 0], [NUM_FIRST, len(TOKENS) - NUM_FIRST], TABLES, PAGE_SIZE)
    cache = PagedCache(spec, 8, PAGE_SIZE, CPU, torch.float32)
    x = model.embed(torch.tensor(TOKENS))
    for index in range(spec.num_layers):
        x = model.layer(index, x, batch, cache)
    return model.logits(x)


def rank_logits(ranks: Collective, spec: ModelSpec, weights: Weights) -> Tensor:
    packed = pack_weights(spec, weights, CPU, torch.float32, spec.max_position, shard=ranks.shard)
    kv = allocate_kv(packed.spec, 8, PAGE_SIZE, CPU, torch.float32)
    num = len(TOKENS)
    forward = Forward(packed, kv, replace(plain_operations(), ranks=ranks), num, num, AttentionTiling())
    tables = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    lengths = (NUM_FIRST, num - NUM_FIRST)
    positions = torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths])
    slots = torch.repeat_interleave(torch.arange(2, dtype=torch.int32), torch.tensor(lengths))
    tiles = torch.tensor([[0, lengths[0], 0, 0], [lengths[0], lengths[1], 0, 1]], dtype=torch.int32)
    rows = Rows(torch.tensor(TOKENS, dtype=torch.int32), positions, slots, tiles, tables, torch.zeros(2, 64).int())
    residual = torch.zeros(num, spec.hidden_size)
    forward.embed(rows, residual)
    for layer in range(spec.num_layers):
        forward.layer(layer, rows, residual, first=layer == 0)
    forward.finish_layers(spec.num_layers - 1, residual)
    return forward.logits(torch.arange(num, dtype=torch.int32), residual).clone()


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("family", SPECS)
def test_ranks_together_say_what_the_whole_model_says(family: str, world: int) -> None:
    spec = shareable(family)
    weights = random_weights(spec)
    logits = run_ranks(world, lambda ranks: rank_logits(ranks, spec, weights))
    torch.testing.assert_close(logits[0], right_logits(spec, weights), rtol=1e-3, atol=1e-3)
    assert all(torch.equal(other, logits[0]) for other in logits[1:])


@pytest.mark.parametrize("name", ["layers.0.q", "layers.0.gate", "layers.0.q_bias", "lm_head"])
@pytest.mark.parametrize("world", [2, 4])
def test_outputs_of_all_ranks_are_the_whole_tensor(name: str, world: int) -> None:
    spec = shareable("qwen2")
    whole = random_weights(spec)[name]
    axis = 1 if whole.rows == 1 else 0
    parts = [dequantize(ShardedWeights({name: whole}, spec, Shard(rank, world))[name]) for rank in range(world)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=axis), dequantize(whole))


def test_ranks_beyond_the_key_heads_share_one() -> None:
    spec = shareable("llama")
    parts = [part_of("layers.2.k", spec, Shard(rank, 4)) for rank in range(4)]
    assert [(part.begin, part.end) for part in parts if part] == [(0, 16), (0, 16), (16, 32), (16, 32)]
    assert shard_spec(spec, Shard(3, 4)).num_kv_heads == 1


@pytest.mark.parametrize(
    ("num_inputs", "kind"), [(64, WeightType.Q8_0), (48, WeightType.F32)], ids=["blocks", "through"]
)
def test_inputs_of_a_quantised_matrix(num_inputs: int, kind: WeightType) -> None:
    """Whole blocks stay quantised; one that two ranks share becomes float32 on both."""
    spec = replace(shareable("llama"), intermediate_size=2 * num_inputs)
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 255, (4, 2 * num_inputs // 32, 34), dtype=np.uint8)
    blocks[:, :, :2] = np.array([0.5], np.float16).view(np.uint8)
    whole = WeightTensor("layers.1.down", WeightType.Q8_0, 4, 2 * num_inputs, blocks.reshape(4, -1))
    parts = [ShardedWeights({whole.name: whole}, spec, Shard(rank, 2))[whole.name] for rank in range(2)]
    assert [part.type for part in parts] == [kind, kind]
    np.testing.assert_array_equal(np.concatenate([dequantize(p) for p in parts], axis=1), dequantize(whole))


def test_random_weights_are_one_model_cut() -> None:
    spec = shareable("gemma3")
    whole = random_packed(spec, CPU, torch.float32, 32, seed=3)
    parts = [random_packed(spec, CPU, torch.float32, 32, seed=3, shard=Shard(rank, 2)) for rank in range(2)]
    assert torch.equal(torch.cat([part.layers[1].down for part in parts], dim=1), whole.layers[1].down)
    assert torch.equal(torch.cat([part.head for part in parts]), whole.head)
    assert torch.equal(parts[1].embed, whole.embed)


@pytest.mark.parametrize(
    ("spec", "world", "reason"),
    [
        (LLAMA, 3, "8 attention heads are no multiple of it"),
        (replace(LLAMA, num_heads=12, num_kv_heads=6), 4, "6 key/value heads neither divide nor are divided by it"),
        (replace(LLAMA, intermediate_size=200), 2, "an inner size of 200 does not come out in multiples of 16"),
        (replace(LLAMA, vocab_size=40), 4, "a vocabulary of 40 is too small"),
    ],
    ids=["heads", "key heads", "inner", "vocabulary"],
)
def test_what_does_not_come_out_even_is_one_line(spec: ModelSpec, world: int, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        check_divisible(spec, world)
    assert str(caught.value) == f"tensor_parallel_size {world} does not fit this model: {reason}"


def test_what_comes_out_even_is_taken() -> None:
    for family in SPECS:
        for world in (1, 2, 4, 8):
            check_divisible(replace(shareable(family), intermediate_size=256, vocab_size=250), world)
