"""The streamed product: how it is cut, on any machine; what it computes, on a Hopper card."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from twinpath.kernels.stream_linear.kernel import StreamLinear, maps_on_card
from twinpath.kernels.stream_linear.spec import ROW_SIZES, Cut, LinearShape, choose_cut, num_stages, shared_bytes

NUM_PROGRAMS = 132
SHAPES = {
    "8B gates": LinearShape(14_336, 4096, gated=True),
    "8B q, k, v": LinearShape(6144, 4096),
    "8B down": LinearShape(4096, 14_336),
    "7B gates": LinearShape(18_944, 3584, gated=True),
    "1B o": LinearShape(2048, 2048),
}


@pytest.mark.parametrize("name", SHAPES)
def test_programs_come_out_nearly_even(name: str) -> None:
    """The last wave is nearly full, and every stage fits."""
    shape = SHAPES[name]
    cut = choose_cut(shape, NUM_PROGRAMS)
    programs = shape.num_tiles(cut) * cut.splits
    assert programs / (-(-programs // NUM_PROGRAMS) * NUM_PROGRAMS) > 0.84
    width = cut.tile // 2 if shape.gated else cut.tile
    assert shape.num_tiles(cut) * width >= shape.outputs > (shape.num_tiles(cut) - 1) * width
    for rows in ROW_SIZES:
        assert num_stages(cut.tile, rows) >= 4
        assert shared_bytes(cut.tile, rows) <= 227 * 1024


def product(shape: LinearShape, cut: Cut, rows: int, x: Tensor, weight: Tensor, num_rows: int) -> Tensor:
    kernel = StreamLinear(shape, rows, cut)
    maps = maps_on_card([kernel.weight_map(weight), kernel.row_map(x)], x.device)
    dtype = torch.bfloat16 if shape.gated else torch.float32
    out = torch.full((num_rows + 1, shape.outputs), 7.0, device=x.device, dtype=dtype)
    kernel.launch(maps[0], maps[1], out[:num_rows], dependent=False)
    assert bool((out[num_rows] == 7.0).all())
    return out[:num_rows].float()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        (LinearShape(1000, 1024), Cut(64, 2)),
        (LinearShape(1000, 1088), Cut(96, 2)),
        (LinearShape(512, 256), Cut(256, 1)),
        (LinearShape(1000, 1024, gated=True), Cut(224, 1)),
        (LinearShape(264, 576, gated=True, gelu=True), Cut(48, 1)),
    ],
    ids=["halves", "odd halves", "whole", "gates", "gelu"],
)
def test_it_is_the_product(shape: LinearShape, cut: Cut) -> None:
    """A last tile that is not full, rows that are not there, and rows whose bits no other size changes."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs an sm_90 card")
    generator = torch.Generator("cuda").manual_seed(0)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", generator=generator).bfloat16()

    x, weight = noise(200, shape.summed), noise(shape.outputs * (1 + shape.gated), shape.summed) * shape.summed**-0.5
    right = x.double() @ weight.double().T
    if shape.gated:
        gates, ups = right.chunk(2, dim=1)
        activation = (
            torch.nn.functional.gelu(gates, approximate="tanh") if shape.gelu else torch.nn.functional.silu(gates)
        )
        right = activation * ups
    few, many = product(shape, cut, 64, x, weight, 50), product(shape, cut, 128, x, weight, 125)
    assert torch.equal(few, many[:50])
    error = (many - right[:125]).norm() / right[:125].norm()
    assert float(error) < (4e-3 if shape.gated else 1e-5)
