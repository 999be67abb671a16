"""Attention of long, aligned chunks by cuDNN: keys gathered from their pages, parts of the context joined by log-sums.

Measured on an H200, 8,192 rows of an 8B: 625 to 693 TFLOP/s, where our own kernel has 380. A chunk is cut into products
of a few fixed shapes, all planned before the engine is ready: planning one costs more than running it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
from torch import Tensor

from twinpath.kernels.prefill_attention.kernel import gather_kernel, merge_kernel
from twinpath.kernels.prefill_rows.spec import HeadShape

#: Rows of a chunk that go this way, and the grain of its context.
CHUNK_SIZES = (2048, 4096, 8192)
_GRAIN = CHUNK_SIZES[0]
_MERGE_ROWS = 32


class LibraryAttention:
    """Holds the gathered context of one request, [longest, K, D] twice."""

    def __init__(self, shape: HeadShape, longest: int, max_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (longest, shape.num_kv_heads, shape.head_dim)
        self._shape = shape
        self._k, self._v = (torch.zeros(size, dtype=dtype, device=device) for _ in range(2))
        self._lse = torch.zeros(shape.num_heads * max_rows, dtype=torch.float32, device=device)
        self._sizes = [size for size in CHUNK_SIZES if size <= max_rows]
        self._longest = longest

    @property
    def grain(self) -> int:
        """Fewest rows of a chunk that goes this way; it begins at a multiple of them."""
        return self._sizes[0]

    @staticmethod
    def nbytes(shape: HeadShape, longest: int, max_rows: int, value_bytes: int) -> int:
        return 2 * longest * shape.num_kv_heads * shape.head_dim * value_bytes + 4 * shape.num_heads * max_rows

    def fits(self, start: int, length: int) -> bool:
        """Whether a chunk of `length` rows at `start` goes this way."""
        return length in self._sizes and start % _GRAIN == 0

    def warm_up(self, scale: float) -> None:
        """Plan every shape that `attend` may need."""
        heads, size = self._shape.num_heads, self._shape.head_dim
        for rows in self._sizes:
            q = torch.zeros(rows, heads * size, dtype=self._k.dtype, device=self._k.device)
            self._product(q, 0, rows, scale, causal=True)
            length = _GRAIN
            while length <= self._longest:
                self._product(q, 0, length, scale, causal=False)
                length *= 2

    def attend(
        self, q: Tensor, table: Tensor, start: int, pages: tuple[Tensor, Tensor], out: Tensor, scale: float
    ) -> None:
        """q and out [rows, H * D]; table int32 [max_pages] of the request; pages: k and v of one layer."""
        shape, rows = self._shape, len(q)
        dim = triton.next_power_of_2(shape.head_dim)
        end = start + rows
        gather_kernel[(triton.cdiv(end, shape.page_size), shape.num_kv_heads)](
            table, pages[0], pages[1], self._k, self._v, end,
            K=shape.num_kv_heads, D=shape.head_dim, DIM=dim, PAGE=shape.page_size, num_warps=4,
        )  # fmt: skip
        target = out.view(rows, shape.num_heads, shape.head_dim)
        for index, (begin, length, causal) in enumerate(_parts(start, rows)):
            part, lse = self._product(q, begin, length, scale, causal=causal)
            merge_kernel[(triton.cdiv(rows, _MERGE_ROWS), shape.num_heads)](
                target, target.stride(0), target.stride(1), self._lse, part, part.stride(2), part.stride(1), lse, rows,
                D=shape.head_dim, DIM=dim, ROWS=_MERGE_ROWS, HAS_OUT=index > 0, num_warps=4,
            )  # fmt: skip

    def _product(self, q: Tensor, begin: int, length: int, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
        """(out [1, H, rows, D], log-sum [1, H, rows, 1]) over keys [begin, begin + length)."""
        queries = q.view(len(q), self._shape.num_heads, self._shape.head_dim).transpose(0, 1)[None]
        keys, values = (part[begin : begin + length].transpose(0, 1)[None] for part in (self._k, self._v))
        result = torch.ops.aten._scaled_dot_product_cudnn_attention(
            queries, keys, values, None, True, 0.0, causal, False, scale=scale
        )
        return result[0], result[1].contiguous()


def _parts(start: int, rows: int) -> Iterator[tuple[int, int, bool]]:
    """The chunk's own rows, then its context in powers of two: (first key, keys, causal)."""
    yield start, rows, True
    begin, left = 0, start // _GRAIN
    while left:
        length = 1 << (left.bit_length() - 1)
        yield begin, length * _GRAIN, False
        begin, left = begin + length * _GRAIN, left - length
