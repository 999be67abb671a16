"""A layer's products in one launch: how they are cut, on any machine; what they compute, on a Hopper card."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from twinpath.kernels.stream_layer.kernel import StreamLayer, make_buffers
from twinpath.kernels.stream_layer.spec import LayerCut, LayerShape, choose_cut
from twinpath.kernels.stream_linear.kernel import box_map, maps_on_card

LLAMA_8B = LayerShape(4096, 4096, 14_336, 6144, 1e-5)
LLAMA_1B = LayerShape(2048, 2048, 8192, 3072, 1e-5)
QWEN25_7B = LayerShape(3584, 3584, 18_944, 4608, 1e-6)


def test_programs_all_fit_the_card_at_once() -> None:
    assert choose_cut(LLAMA_8B, 132) == LayerCut(residual=64, gates=224, qkv=96)
    for shape in (LLAMA_8B, LLAMA_1B):
        cut = choose_cut(shape, 132)
        assert cut is not None and cut.num_programs(shape) == 128 and cut.num_parts(shape) == 128


def test_models_whose_tiles_do_not_come_out_even_have_no_cut() -> None:
    assert choose_cut(QWEN25_7B, 132) is None
    assert choose_cut(LLAMA_8B, 64) is None


@dataclass(frozen=True)
class Run:
    """What one launch left, of the rows there are."""

    residual: Tensor
    qkv: Tensor
    x: Tensor


@dataclass(frozen=True)
class Model:
    shape: LayerShape
    weights: list[Tensor]
    norms: tuple[Tensor, Tensor]
    attended: Tensor
    residual: Tensor

    @classmethod
    def draw(cls, shape: LayerShape) -> Model:
        generator = torch.Generator("cuda").manual_seed(0)

        def noise(*size: int) -> Tensor:
            return torch.randn(*size, device="cuda", generator=generator)

        sizes = [
            (shape.hidden, shape.heads), (2 * shape.inner, shape.hidden), (shape.hidden, shape.inner),
            (shape.qkv, shape.hidden),
        ]  # fmt: skip
        weights = [(noise(*size) * size[1] ** -0.5).bfloat16() for size in sizes]
        norms = 1 + 0.1 * noise(shape.hidden), 1 + 0.1 * noise(shape.hidden)
        return cls(shape, weights, norms, noise(200, shape.heads).bfloat16(), 3 * noise(200, shape.hidden))

    def right(self) -> tuple[Tensor, Tensor]:
        """Residual and next qkv, in double precision."""
        o, gate_up, down, qkv = (weight.double() for weight in self.weights)
        residual = self.residual.double() + self.attended.double() @ o.T
        gates, ups = (self._normed(residual, self.norms[0]) @ gate_up.T).chunk(2, dim=1)
        activated = torch.nn.functional.gelu(gates, approximate="tanh") if self.shape.gelu else gates * gates.sigmoid()
        residual = residual + (activated * ups) @ down.T
        return residual, self._normed(residual, self.norms[1]) @ qkv.T

    def _normed(self, residual: Tensor, gain: Tensor) -> Tensor:
        return residual * (residual.square().mean(dim=1, keepdim=True) + self.shape.norm_eps).rsqrt() * gain

    def run(self, rows: int, num_rows: int, *, is_last: bool = False, times: int = 1) -> Run:
        shape, device = self.shape, self.residual.device
        cut = choose_cut(shape, 132)
        assert cut is not None
        kernel = StreamLayer(shape, rows, cut)
        residual = self.residual.clone()
        x, gated = (torch.zeros(200, n, device=device, dtype=torch.bfloat16) for n in (shape.hidden, shape.inner))
        projected = torch.full((num_rows + 1, shape.qkv), 7.0, device=device)
        squares, meetings = make_buffers(shape, cut, 128, device)
        row_maps = maps_on_card([box_map(source, rows) for source in (self.attended, x, gated)], device)
        boxes = (cut.residual, cut.gates // 2, cut.residual, cut.qkv)
        maps = [maps_on_card([box_map(w, box)], device)[0] for w, box in zip(self.weights, boxes, strict=True)]
        for _ in range(times):
            residual[:num_rows] = self.residual[:num_rows]
            kernel.launch(
                (maps[0], maps[1], maps[2], None if is_last else maps[3]),
                (row_maps[0], row_maps[1], row_maps[2]),
                (residual, x, gated, projected, squares, meetings),
                (self.norms[0], None if is_last else self.norms[1]),
                num_rows,
                dependent=False,
            )
        torch.cuda.synchronize()
        assert torch.equal(residual[num_rows:], self.residual[num_rows:])
        assert bool((projected[num_rows] == 7.0).all()) and not bool(x[num_rows:].any())
        return Run(residual[:num_rows], projected[:num_rows], x[:num_rows])


def error(got: Tensor, right: Tensor) -> float:
    return float((got.double() - right).norm() / right.norm())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [
        LayerShape(512, 512, 1024, 768, 1e-5),
        LayerShape(1024, 2048, 1536, 1280, 1e-6, gelu=True),
        LLAMA_1B,
        LLAMA_8B,
    ],
    ids=["small", "gelu", "1B", "8B"],
)
def test_it_is_the_layer(shape: LayerShape) -> None:
    """Rows that are not there stay as they are; neither other rows nor a launch before change a row's bits."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs an sm_90 card")
    model = Model.draw(shape)
    right = model.right()
    many = model.run(128, 125, times=3)
    for rows, num_rows in ((32, 30), (64, 50)):
        few = model.run(rows, num_rows)
        for small, large in ((few.residual, many.residual), (few.qkv, many.qkv), (few.x, many.x)):
            assert torch.equal(small, large[:num_rows])
    assert error(many.residual - model.residual[:125], right[0][:125] - model.residual[:125].double()) < 6e-3
    assert error(many.qkv, right[1][:125]) < 6e-3
    last = model.run(128, 125, is_last=True)
    assert torch.equal(last.residual, many.residual) and bool((last.qkv == 7.0).all())
