"""Sums and joins over ranks: through the library's process group, and for small messages through peer memory."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from twinpath.engine.cuda.shards import Shard, part_size
from twinpath.kernels.all_reduce import reference
from twinpath.kernels.all_reduce.spec import Exchange

#: Bytes of a message, over all receivers, that go in one shot. On a pair of H200 the library takes 14 us for 256 KB and
#: 33 for 2 MB; packets are twice the bytes, which a link of 369 GB/s takes 6 us for 1 MB to carry. (Arithmetic.)
_ONE_SHOT_BYTES = 1 << 20


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> object: ...


class ProcessGroup(Protocol):
    """What we use of `torch.distributed`'s process groups (NCCL, gloo)."""

    def allreduce(self, tensors: list[Tensor], /) -> Work: ...

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], /) -> Work: ...


class Collective(Protocol):
    """What the ranks of a model do together, each in the same order; on the current stream, and it may be captured."""

    @property
    def shard(self) -> Shard: ...

    @property
    def exchange(self) -> Exchange | None:
        """For kernels that exchange themselves; None: there is no peer memory."""
        ...

    def add_up(self, x: Tensor) -> None:
        """x (contiguous) becomes its sum over the ranks, the same bits on each."""
        ...

    def join(self, part: Tensor, out: Tensor) -> None:
        """out [R, vocab] = all ranks' parts of it, side by side: a rank's is `cuda_shards.vocabulary_part`."""
        ...


class LibraryCollective:
    """Through a process group.

    fixed_order: add in rank order whatever the size, as gloo and NCCL do not promise to.
    """

    exchange = None

    def __init__(self, group: ProcessGroup, shard: Shard, *, fixed_order: bool) -> None:
        self._group, self.shard, self._fixed_order = group, shard, fixed_order

    def add_up(self, x: Tensor) -> None:
        if self._fixed_order:
            x.copy_(reference.add_up(self._gather(x)))
        else:
            self._group.allreduce([x]).wait()

    def join(self, part: Tensor, out: Tensor) -> None:
        size = part_size(out.shape[1], self.shard.world)
        if part.shape[1] < size:
            part = torch.nn.functional.pad(part, (0, size - part.shape[1]))
        for rank, piece in enumerate(self._gather(part.contiguous())):
            columns = out[:, rank * size : (rank + 1) * size]
            columns.copy_(piece[:, : columns.shape[1]])

    def _gather(self, x: Tensor) -> list[Tensor]:
        pieces = list(torch.empty(self.shard.world, *x.shape, dtype=x.dtype, device=x.device).unbind(0))
        self._group.allgather([pieces], [x]).wait()
        return pieces


class PeerCollective:
    """Small messages by our kernels; larger ones by `large`, or piece by piece where there is none."""

    def __init__(self, exchange: Exchange, large: Collective | None) -> None:
        from twinpath.kernels.all_reduce import launch  # needs Triton, which a CPU may lack

        self.shard, self.exchange = Shard(exchange.rank, exchange.world), exchange
        self._kernels, self._large = launch, large

    def add_up(self, x: Tensor) -> None:
        is_small = x.numel() * x.element_size() * (self.shard.world - 1) <= _ONE_SHOT_BYTES
        if self._kernels.fits(x, self.exchange) and (is_small or self._large is None):
            self._kernels.add_up(x, self.exchange)
        elif self._large is not None:
            self._large.add_up(x)
        else:
            values, size = x.view(-1), self.exchange.capacity
            for first in range(0, len(values), size):
                self._kernels.add_up(values[first : first + size], self.exchange)

    def join(self, part: Tensor, out: Tensor) -> None:
        size = part_size(out.shape[1], self.shard.world)
        num_rows = self._kernels.fitting_rows(size, self.exchange)
        if len(part) > num_rows and self._large is not None:
            self._large.join(part, out)
            return
        for first in range(0, len(part), num_rows):
            rows = slice(first, first + num_rows)
            self._kernels.join(part[rows], size, out[rows], self.exchange)
