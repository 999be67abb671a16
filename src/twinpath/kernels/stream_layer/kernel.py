"""Compile and launch a layer's products. `layer.cu` says how they work."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from twinpath.kernels.nvrtc import CudaKernel, compile_cuda
from twinpath.kernels.stream_layer.spec import LayerCut, LayerShape
from twinpath.kernels.stream_linear.kernel import multiply_tile
from twinpath.kernels.stream_linear.spec import SHARED_BYTES

_GROUP_ROWS = 64


class StreamLayer:
    """One compiled model: `rows` (32, or a multiple of 64) rows at most."""

    def __init__(self, shape: LayerShape, rows: int, cut: LayerCut) -> None:
        cubin = compile_cuda(source(cut), macros(shape, rows, cut), "sm_90a")
        self._kernel = CudaKernel(cubin, "stream_layer", SHARED_BYTES)
        self._num_programs = cut.num_programs(shape)
        self._num_threads = (-(-rows // _GROUP_ROWS) * 4 + 1) * 32

    def launch(
        self,
        weight_maps: tuple[Tensor, Tensor, Tensor, Tensor | None],
        row_maps: tuple[Tensor, Tensor, Tensor],
        buffers: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
        norms: tuple[Tensor, Tensor | None],
        num_rows: int,
        *,
        dependent: bool = True,
    ) -> None:
        """From `attended` to the residual after the layer, and to the next layer's q, k and v.

        weight_maps: of o, gate_up, down and the next layer's qkv, or None with the last layer; row_maps: of attended, x
        and gated. Shapes of buffers: residual float32 [R, hidden]; x [any, hidden] and gated [any, inner] bfloat16;
        qkv float32 [R, qkv]; squares float32 [rows, parts]; meetings int64 [1], zero before the first launch.
        norms: of the MLP and of the next layer's attention.
        """
        o, gate_up, down, qkv = weight_maps
        residual, x, gated, projected, squares, meetings = buffers
        mlp_norm, next_norm = norms
        has_next = qkv is not None and next_norm is not None
        tensors = [o, gate_up, down, qkv if qkv is not None else o, *row_maps, residual, x, gated, projected, squares]
        tensors += [mlp_norm, next_norm if next_norm is not None else mlp_norm, meetings]
        values = [*(tensor.data_ptr() for tensor in tensors), num_rows, int(has_next)]
        self._kernel.launch(self._num_programs, self._num_threads, values, dependent=dependent)


def make_buffers(shape: LayerShape, cut: LayerCut, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`squares` and `meetings` of `launch`."""
    squares = torch.zeros(rows, cut.num_parts(shape), device=device)
    return squares, torch.zeros(1, dtype=torch.int64, device=device)


def macros(shape: LayerShape, rows: int, cut: LayerCut) -> dict[str, str]:
    values = {
        "ROWS": rows,
        "HIDDEN": shape.hidden,
        "HEADS_WIDTH": shape.heads,
        "INNER": shape.inner,
        "QKV_WIDTH": shape.qkv,
        "RESIDUAL_TILE": cut.residual,
        "GATE_TILE": cut.gates,
        "QKV_TILE": cut.qkv,
        "EPS": f"{shape.norm_eps!r}f",
        "GELU": int(shape.gelu),
        "SHARED_BYTES": SHARED_BYTES,
    }
    return {name: str(value) for name, value in values.items()}


@cache
def source(cut: LayerCut) -> str:
    """All files as one text: NVRTC sees no files."""
    folder = Path(__file__).parent
    names = ("../stream_linear/primitives.cuh", "layout.cuh", "layer.cu")
    primitives, layout, layer = ((folder / name).read_text(encoding="utf-8") for name in names)
    tiles = sorted({cut.residual, cut.gates, cut.qkv})
    return primitives + "".join(map(multiply_tile, tiles)) + layout + layer
