"""Which models take a layer's products in one launch, and that a decode step of many rows says the same with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benchmarks.gpu_models import GEMMA3_1B, LLAMA_8B, with_layers

from twinpath.engine.cuda.layer_streams import can_stream, layer_shape
from twinpath.kernels.stream_layer.spec import LayerShape, choose_cut

SMALL = replace(
    with_layers(LLAMA_8B, 3), hidden_size=512, intermediate_size=1024, num_heads=4, num_kv_heads=2, vocab_size=2048
)
NUM_PAGES = 8


def test_widths_are_those_of_the_model() -> None:
    assert layer_shape(LLAMA_8B) == LayerShape(4096, 4096, 14_336, 6144, LLAMA_8B.norm_eps)
    assert layer_shape(GEMMA3_1B).gelu
    assert choose_cut(layer_shape(SMALL), 132) is not None
    assert not can_stream(torch.zeros(1, dtype=torch.bfloat16))


@pytest.mark.gpu
def test_a_decode_step_says_the_same_with_them() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs an sm_90 card")
    from twinpath.engine.cuda.decode import DecodeStep
    from twinpath.engine.cuda.weights import allocate_kv, random_weights

    device, num_rows = torch.device("cuda"), 40
    weights = random_weights(SMALL, device, torch.bfloat16, 128)
    kv = allocate_kv(SMALL, NUM_PAGES * num_rows, 16, device, torch.bfloat16)
    for part in (*kv.k, *kv.v):
        part.normal_()
    step = DecodeStep(weights, kv, NUM_PAGES, min_product_rows=1)
    rows = torch.arange(num_rows, device=device)
    step.buffers.positions[:num_rows] = rows.int() * 3
    step.buffers.tokens[:num_rows] = rows.int() * 7
    step.buffers.block_tables[:num_rows] = (rows[:, None] * NUM_PAGES + torch.arange(NUM_PAGES, device=device)).int()
    step.launch(num_rows)
    got = step.buffers.logits[:num_rows].double()
    assert step._products._streamed is not None
    step._products._streamed = None
    step.launch(num_rows)
    right = step.buffers.logits[:num_rows].double()
    assert float((got - right).norm() / right.norm()) < 1.5e-2
