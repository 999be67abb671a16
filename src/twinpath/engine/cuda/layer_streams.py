"""A layer's products for few rows in one launch, where the card and the model allow."""

from __future__ import annotations

import torch
from torch import Tensor

from twinpath.engine.cuda.weights import PackedWeights
from twinpath.kernels.stream_layer.kernel import StreamLayer, make_buffers
from twinpath.kernels.stream_layer.spec import ROW_SIZES, LayerCut, LayerShape, choose_cut
from twinpath.kernels.stream_linear.kernel import box_map, maps_on_card
from twinpath.model.spec import ModelSpec


class StreamedLayers:
    """Over fixed buffers x [any, hidden], attended [any, H D], gated [any, I], bfloat16, and qkv float32 [any]."""

    def __init__(
        self, weights: PackedWeights, cut: LayerCut, x: Tensor, attended: Tensor, gated: Tensor, qkv: Tensor
    ) -> None:
        shape, device = layer_shape(weights.spec), x.device
        self._layers, self._x, self._gated, self._qkv = weights.layers, x, gated, qkv
        self._kernels = {rows: StreamLayer(shape, rows, cut) for rows in ROW_SIZES}
        self._row_maps = {
            rows: maps_on_card([box_map(source, rows) for source in (attended, x, gated)], device) for rows in ROW_SIZES
        }
        boxes = {"o": cut.residual, "gate_up": cut.gates // 2, "down": cut.residual, "qkv": cut.qkv}
        self._weight_maps = {
            name: maps_on_card([box_map(getattr(layer, name), box) for layer in weights.layers], device)
            for name, box in boxes.items()
        }
        self._squares, self._meetings = make_buffers(shape, cut, ROW_SIZES[-1], device)
        self._qkv_width = shape.qkv

    def run(self, index: int, residual: Tensor) -> None:
        """From the layer's `attended` to `residual` float32 [R, hidden] after it and to `qkv` of the next one."""
        num_rows, layers, maps = len(residual), self._layers, self._weight_maps
        rows = next(size for size in ROW_SIZES if size >= num_rows)
        is_last = index + 1 == len(layers)
        next_qkv = None if is_last else maps["qkv"][index + 1]
        self._kernels[rows].launch(
            (maps["o"][index], maps["gate_up"][index], maps["down"][index], next_qkv),
            (self._row_maps[rows][0], self._row_maps[rows][1], self._row_maps[rows][2]),
            (residual, self._x, self._gated, self._qkv, self._squares, self._meetings),
            (layers[index].mlp_norm, None if is_last else layers[index + 1].attn_norm),
            num_rows,
        )

    def qkv(self, num_rows: int) -> Tensor:
        """What `run` left for the layer that comes next."""
        return self._qkv[: num_rows * self._qkv_width].view(num_rows, self._qkv_width)


def can_stream(x: Tensor) -> bool:
    """bfloat16 on Hopper."""
    is_candidate = x.device.type == "cuda" and x.dtype == torch.bfloat16
    return is_candidate and torch.cuda.get_device_capability(x.device) == (9, 0)


def make_layers(
    weights: PackedWeights, x: Tensor, attended: Tensor, gated: Tensor, qkv: Tensor
) -> StreamedLayers | None:
    """For models without norms behind their products and without a bias there, whose tiles come out even."""
    num_programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    cut = choose_cut(layer_shape(weights.spec), num_programs)
    if cut is None or any(layer.post_norms or layer.o_bias is not None for layer in weights.layers):
        return None
    return StreamedLayers(weights, cut, x, attended, gated, qkv)


def layer_shape(spec: ModelSpec) -> LayerShape:
    heads = spec.num_heads * spec.head_dim
    return LayerShape(
        hidden=spec.hidden_size,
        heads=heads,
        inner=spec.intermediate_size,
        qkv=heads + 2 * spec.num_kv_heads * spec.head_dim,
        norm_eps=spec.norm_eps,
        gelu=spec.activation != "silu",
    )
