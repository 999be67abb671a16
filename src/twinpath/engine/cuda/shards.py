"""Which part of a model's weights one of several GPUs holds.

q, k, v, gate and up are cut by outputs, o and down by inputs: a layer adds up the ranks' partial sums twice. The head
is cut by tokens. The embedding stays whole: a rank reads one row of it; norms are small. Source: Shoeybi et al. 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from twinpath.errors import UserError
from twinpath.model.dequant import dequantize
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import BLOCK_LAYOUT, WeightTensor, WeightType

#: Kernels want summed axes and tiles of the head in multiples of this.
GRAIN = 16


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `world`."""

    rank: int = 0
    world: int = 1

    @property
    def is_whole(self) -> bool:
        return self.world == 1


WHOLE = Shard()


@dataclass(frozen=True, slots=True)
class Part:
    """Outputs (`by_rows`) or inputs [begin, end) of a matrix; of a vector always entries."""

    by_rows: bool
    begin: int
    end: int


def check_divisible(spec: ModelSpec, world: int) -> None:
    """Raises: UserError when the model cannot be shared by `world` GPUs, naming what does not come out even."""
    heads, kv_heads, inner = spec.num_heads, spec.num_kv_heads, spec.intermediate_size
    reason = None
    if heads % world:
        reason = f"{heads} attention heads are no multiple of it"
    elif kv_heads % world and world % kv_heads:
        reason = f"{kv_heads} key/value heads neither divide nor are divided by it"
    elif inner % (world * GRAIN) or heads // world * spec.head_dim % GRAIN:
        reason = f"an inner size of {inner} does not come out in multiples of {GRAIN}"
    elif vocabulary_part(spec.vocab_size, Shard(world - 1, world)).end != spec.vocab_size:
        reason = f"a vocabulary of {spec.vocab_size} is too small"
    if reason is not None:
        raise UserError(f"tensor_parallel_size {world} does not fit this model: {reason}")


def shard_spec(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """The model as one rank sees it: its heads and inner size; width, vocabulary and all else stay.

    With more ranks than key heads a rank has one, the same as its neighbours.
    """
    return replace(
        spec,
        num_heads=spec.num_heads // shard.world,
        num_kv_heads=max(1, spec.num_kv_heads // shard.world),
        intermediate_size=spec.intermediate_size // shard.world,
    )


def part_size(vocab_size: int, world: int) -> int:
    """Rows of the head that a rank has; the last one may have fewer."""
    return -(-vocab_size // (world * GRAIN)) * GRAIN


def vocabulary_part(vocab_size: int, shard: Shard) -> Part:
    """A rank's rows of the head."""
    size = part_size(vocab_size, shard.world)
    begin = min(shard.rank * size, vocab_size)
    # An empty part ends before the vocabulary does, which `check_divisible` sees.
    end = min(begin + size, vocab_size) if begin < vocab_size else 0
    return Part(True, begin, end)


def part_of(name: str, spec: ModelSpec, shard: Shard) -> Part | None:
    """What a rank holds of the tensor with this canonical name; None: all of it. `spec` is the whole model's."""
    kind, own = name.rsplit(".", 1)[-1].removesuffix("_bias"), shard_spec(spec, shard)
    if shard.is_whole or name.endswith("o_bias"):
        return None
    if kind == "lm_head":
        return vocabulary_part(spec.vocab_size, shard)
    if kind in ("q", "o"):
        first, num = shard.rank * own.num_heads * spec.head_dim, own.num_heads * spec.head_dim
    elif kind in ("k", "v"):
        head = shard.rank * spec.num_kv_heads // shard.world
        first, num = head * spec.head_dim, own.num_kv_heads * spec.head_dim
    elif kind in ("gate", "up", "down"):
        first, num = shard.rank * own.intermediate_size, own.intermediate_size
    else:
        return None
    return Part(kind not in ("o", "down"), first, first + num)


def cut_tensor(tensor: Tensor, part: Part | None) -> Tensor:
    """That part of a tensor in memory, contiguous."""
    if part is None:
        return tensor
    if part.by_rows or tensor.dim() == 1:
        return tensor[part.begin : part.end]
    return tensor[:, part.begin : part.end].contiguous()


class ShardedWeights(Mapping[str, WeightTensor]):
    """A rank's part of every tensor of a file; the other parts' bytes are never read."""

    def __init__(self, weights: Mapping[str, WeightTensor], spec: ModelSpec, shard: Shard) -> None:
        self._weights, self._spec, self._shard = weights, spec, shard

    def __getitem__(self, name: str) -> WeightTensor:
        tensor, part = self._weights[name], part_of(name, self._spec, self._shard)
        if part is None:
            return tensor
        if part.by_rows and tensor.rows > 1:
            data = tensor.data[part.begin : part.end]
            return replace(tensor, rows=part.end - part.begin, data=data)
        return _columns(tensor, part.begin, part.end)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _columns(tensor: WeightTensor, begin: int, end: int) -> WeightTensor:
    """Blocks of a format that the part cuts through become float32."""
    block, block_bytes = BLOCK_LAYOUT[tensor.type]
    if begin % block or end % block:
        values = np.ascontiguousarray(dequantize(tensor)[:, begin:end])
        return replace(tensor, type=WeightType.F32, cols=end - begin, data=values.view(np.uint8))
    data = tensor.data[:, begin // block * block_bytes : end // block * block_bytes]
    return replace(tensor, cols=end - begin, data=np.ascontiguousarray(data))
