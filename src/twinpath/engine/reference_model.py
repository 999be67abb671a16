"""One decoder in plain torch, driven by a `ModelSpec`: the definition of right for every faster engine.

Shape letters: R rows of one step, C context of one segment, H query heads, K key/value heads, D head size.
The residual stream and every reduction are float32; matrices multiply in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from twinpath.model.dequant import dequantize
from twinpath.model.rope import cos_sin_scale, inverse_frequencies
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights, WeightTensor, WeightType
from twinpath.types import Int32s

_TORCH_TYPES = {
    WeightType.F32: torch.float32,
    WeightType.F16: torch.float16,
    WeightType.BF16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one request: rows [row, row + length) of the step hold positions [start, start + length)."""

    row: int
    start: int
    length: int
    #: Page ids in position order, int64 [pages of start + length tokens], on the model's device.
    pages: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step as the model sees them.

    Shapes: cells int64 [R] (page * page_size + offset of each row's key and value); rotations: per rope (cos, sin),
        float32 [R, 1, D / 2] each.
    """

    segments: Sequence[Segment]
    cells: Tensor
    rotations: Sequence[tuple[Tensor, Tensor]]


class PagedCache:
    """Keys and values of every layer in pages: k[layer] and v[layer] are [num_pages, page_size, K, D]."""

    def __init__(
        self, spec: ModelSpec, num_pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (num_pages, page_size, spec.num_kv_heads, spec.head_dim)
        self.page_size = page_size
        self.k = [torch.empty(shape, device=device, dtype=dtype) for _ in range(spec.num_layers)]
        self.v = [torch.empty(shape, device=device, dtype=dtype) for _ in range(spec.num_layers)]

    def write(self, layer: int, cells: Tensor, k: Tensor, v: Tensor) -> None:
        self.k[layer].flatten(0, 1)[cells] = k
        self.v[layer].flatten(0, 1)[cells] = v

    def read(self, layer: int, segment: Segment, first: int) -> tuple[Tensor, Tensor]:
        """Keys and values of positions [first, start + length), each [C, K, D]; earlier pages are not read."""
        first_page = first // self.page_size
        pages = segment.pages[first_page:]
        skip = first - first_page * self.page_size
        num = segment.start + segment.length - first
        k = self.k[layer][pages].flatten(0, 1)[skip : skip + num]
        v = self.v[layer][pages].flatten(0, 1)[skip : skip + num]
        return k, v


class ReferenceModel:
    """The decoder's arithmetic: `embed`, then `layer` for each layer, then `logits`."""

    def __init__(self, spec: ModelSpec, weights: Weights, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = spec
        self.device = device
        self.dtype = dtype
        self._weights = {name: _to_torch(tensor, device, dtype) for name, tensor in weights.items()}
        self._head = self._weights["embed" if spec.tied_embeddings else "lm_head"]
        self._frequencies = [
            torch.from_numpy(inverse_frequencies(rope, spec.head_dim)).to(device) for rope in spec.ropes
        ]
        self._rope_factors = [cos_sin_scale(rope) for rope in spec.ropes]

    def batch(
        self, starts: Sequence[int], lengths: Sequence[int], block_tables: Sequence[Int32s], page_size: int
    ) -> Batch:
        """Lay out segments one after another. `block_tables` are rows as in `StepPlan`."""
        segments, cells, positions, row = [], [], [], 0
        for start, length, table in zip(starts, lengths, block_tables, strict=True):
            num_pages = -(-(start + length) // page_size)
            position = np.arange(start, start + length)
            positions.append(position)
            cells.append(table[position // page_size].astype(np.int64) * page_size + position % page_size)
            pages = torch.from_numpy(table[:num_pages].astype(np.int64)).to(self.device)
            segments.append(Segment(row, start, length, pages))
            row += length
        all_positions = torch.from_numpy(np.concatenate(positions)).to(self.device)
        all_cells = torch.from_numpy(np.concatenate(cells)).to(self.device)
        return Batch(segments, all_cells, [self._rotation(i, all_positions) for i in range(len(self.spec.ropes))])

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens int64 [R] -> residual float32 [R, hidden]."""
        return F.embedding(tokens, self._weights["embed"]).float() * self.spec.embed_scale

    def layer(self, index: int, x: Tensor, batch: Batch, cache: PagedCache) -> Tensor:
        """One decoder layer: residual float32 [R, hidden] in and out; writes this layer's keys and values."""
        name = f"layers.{index}."
        attended = self._attention(index, self._norm(x, name + "attn_norm"), batch, cache)
        if self.spec.sandwich_norms:
            attended = self._norm(attended, name + "post_attn_norm")
        x = x + attended
        mixed = self._mlp(name, self._norm(x, name + "mlp_norm"))
        if self.spec.sandwich_norms:
            mixed = self._norm(mixed, name + "post_mlp_norm")
        return x + mixed

    def logits(self, x: Tensor) -> Tensor:
        """Final norm and output head: residual [R, hidden] -> float32 [R, vocab]."""
        return F.linear(self._norm(x, "final_norm"), self._head).float()

    def _attention(self, index: int, x: Tensor, batch: Batch, cache: PagedCache) -> Tensor:
        spec, name = self.spec, f"layers.{index}."
        q = self._linear(x, name + "q").view(-1, spec.num_heads, spec.head_dim)
        k = self._linear(x, name + "k").view(-1, spec.num_kv_heads, spec.head_dim)
        v = self._linear(x, name + "v").view(-1, spec.num_kv_heads, spec.head_dim)
        if spec.qk_norm:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        cos, sin = batch.rotations[spec.layer_rope[index]]
        cache.write(index, batch.cells, _rotate(k, cos, sin), v)
        q = _rotate(q, cos, sin)
        heads = [self._attend(index, q[s.row : s.row + s.length], s, cache) for s in batch.segments]
        return self._linear(torch.cat(heads).flatten(1), name + "o").float()

    def _attend(self, index: int, q: Tensor, segment: Segment, cache: PagedCache) -> Tensor:
        """One segment's queries [L, H, D] over its own context; returns [L, H, D]."""
        window = self.spec.layer_window[index]
        first = 0 if window is None else max(0, segment.start - window + 1)
        k, v = cache.read(index, segment, first)
        mask = None
        if segment.length > 1:
            query = torch.arange(segment.start, segment.start + segment.length, device=self.device)[:, None]
            key = torch.arange(first, segment.start + segment.length, device=self.device)[None, :]
            mask = key <= query
            if window is not None:
                mask &= key > query - window
        # Every query head its own keys: torch's memory-saving kernels on CUDA know no shared ones.
        group = self.spec.num_heads // self.spec.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=mask,
            scale=self.spec.attn_scale,
        )
        return out[0].transpose(0, 1)

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        gate = self._linear(x, name + "gate")
        gate = F.silu(gate) if self.spec.activation == "silu" else F.gelu(gate, approximate="tanh")
        return self._linear(gate * self._linear(x, name + "up"), name + "down").float()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weights[name], self._weights.get(name + "_bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """RMS norm over the last axis in float32, then the model's dtype. Source: Zhang and Sennrich 2019, eq. 4."""
        x = x.float()
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.spec.norm_eps)
        return (scaled * self._weights[name].float()).to(self.dtype)

    def _rotation(self, rope: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        # Angles in float64: at position 100,000 a float32 angle is already wrong in its third digit after the point.
        angles = positions.double()[:, None, None] * self._frequencies[rope]
        factor = self._rope_factors[rope]
        return (angles.cos() * factor).float(), (angles.sin() * factor).float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [R, heads, D] in rotate-half order. Source: Su et al. 2021 (RoFormer), eq. 34."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _to_torch(tensor: WeightTensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[rows, cols], or [cols] for a vector. Copies: a file mapping is read-only, which torch cannot express."""
    stored = _TORCH_TYPES.get(tensor.type)
    if stored is None:
        values = torch.from_numpy(dequantize(tensor))
    else:
        values = torch.from_numpy(np.array(tensor.data)).view(stored)
    values = values.reshape(tensor.cols if tensor.rows == 1 else (tensor.rows, tensor.cols))
    is_norm = tensor.name.endswith("norm")
    return values.to(device=device, dtype=torch.float32 if is_norm else dtype)
