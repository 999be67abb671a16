"""The products of a layer for few rows, whose weights stream past them: one kernel a projection, gates fused."""

from __future__ import annotations

import torch
from torch import Tensor

from twinpath.engine.cuda.layer_streams import can_stream, make_layers
from twinpath.engine.cuda.tuning import StepTuning
from twinpath.engine.cuda.weights import PackedLayer, PackedWeights
from twinpath.kernels.linear.kernel import linear
from twinpath.kernels.stream_linear.kernel import StreamLinear, maps_on_card
from twinpath.kernels.stream_linear.spec import ROW_SIZES, LinearShape, choose_cut, is_supported
from twinpath.model.spec import ModelSpec


class StreamedProducts:
    """Products over fixed buffers: x [any, hidden], attended [any, H D], gated [any, I], all bfloat16.

    Results are float32 [R, outputs] and valid until the next product.
    """

    def __init__(self, weights: PackedWeights, x: Tensor, attended: Tensor, gated: Tensor) -> None:
        spec, device = weights.spec, x.device
        shapes = projection_shapes(spec)
        num_programs = torch.cuda.get_device_properties(device).multi_processor_count
        cuts = {name: choose_cut(shape, num_programs) for name, shape in shapes.items()}
        self._kernels = {
            (name, rows): StreamLinear(shape, rows, cuts[name]) for name, shape in shapes.items() for rows in ROW_SIZES
        }
        self._gated, self._head = gated, weights.head
        sources = {"qkv": x, "o": attended, "gate_up": x, "down": gated}
        self._row_maps = {
            key: maps_on_card([kernel.row_map(sources[key[0]])], device)[0] for key, kernel in self._kernels.items()
        }
        self._weight_maps = {
            name: maps_on_card(
                [self._kernels[name, ROW_SIZES[0]].weight_map(_weight(layer, name)) for layer in weights.layers], device
            )
            for name in shapes
        }
        widest = max(shape.outputs for shape in shapes.values() if not shape.gated)
        self._result = torch.zeros(ROW_SIZES[-1] * widest, device=device)
        #: Takes everything from attention to the next layer's q, k and v over.
        self.layers = make_layers(weights, x, attended, gated, self._result)

    def qkv(self, layer: int, num_rows: int) -> Tensor:
        return self._product("qkv", layer, num_rows)

    def o(self, layer: int, num_rows: int) -> Tensor:
        return self._product("o", layer, num_rows)

    def gate(self, layer: int, num_rows: int) -> None:
        """act(gate) * up from x to `gated`."""
        self._launch("gate_up", layer, num_rows, self._gated[:num_rows])

    def down(self, layer: int, num_rows: int) -> Tensor:
        return self._product("down", layer, num_rows)

    def logits(self, x: Tensor, out: Tensor) -> None:
        """out float32 [P, vocab] = x [P, hidden] @ head^T, for a few rows."""
        linear(x, self._head, None, None, 0.0, out, tiling=StepTuning().head)

    def change(self, num_rows: int) -> Tensor:
        """What the last `o` or `down` of so many rows left."""
        return self._out("down", num_rows)

    def _product(self, name: str, layer: int, num_rows: int) -> Tensor:
        out = self._out(name, num_rows)
        self._launch(name, layer, num_rows, out)
        return out

    def _out(self, name: str, num_rows: int) -> Tensor:
        outputs = self._kernels[name, ROW_SIZES[0]].shape.outputs
        return self._result[: num_rows * outputs].view(num_rows, outputs)

    def _launch(self, name: str, layer: int, num_rows: int, out: Tensor) -> None:
        key = name, _size(num_rows)
        self._kernels[key].launch(self._weight_maps[name][layer], self._row_maps[key], out)


def make_streams(weights: PackedWeights, x: Tensor, attended: Tensor, gated: Tensor) -> StreamedProducts | None:
    """For bfloat16 on Hopper and shapes whose stages come out even."""
    if not can_stream(x):
        return None
    if (
        not all(map(is_supported, projection_shapes(weights.spec).values()))
        or len(weights.head) % StepTuning().head.rows
    ):
        return None
    return StreamedProducts(weights, x, attended, gated)


def projection_shapes(spec: ModelSpec) -> dict[str, LinearShape]:
    heads, hidden, inner = spec.num_heads * spec.head_dim, spec.hidden_size, spec.intermediate_size
    return {
        "qkv": LinearShape(heads + 2 * spec.num_kv_heads * spec.head_dim, hidden),
        "o": LinearShape(hidden, heads),
        "gate_up": LinearShape(inner, hidden, gated=True, gelu=spec.activation != "silu"),
        "down": LinearShape(hidden, inner),
    }


def _size(num_rows: int) -> int:
    return next(size for size in ROW_SIZES if size >= num_rows)


def _weight(layer: PackedLayer, name: str) -> Tensor:
    weights = {"qkv": layer.qkv, "o": layer.o, "gate_up": layer.gate_up, "down": layer.down}
    return weights[name]
