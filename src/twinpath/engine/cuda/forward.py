"""Ragged rows through the layers: matrix products by the vendor's library, everything between them by our kernels.

Buffers are allocated once for the largest step. The change that a layer's MLP makes is added by the kernel that norms
for the next layer, so a layer leaves it in `_change` and whoever comes next picks it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinpath.engine.cuda.ops import Operations
from twinpath.engine.cuda.slots import aligned
from twinpath.engine.cuda.weights import KvPool, PackedWeights
from twinpath.kernels.prefill_attention.spec import AttentionTiling, KeyParts, rows_per_tile
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows

if TYPE_CHECKING:
    from twinpath.engine.cuda.streams import StreamedProducts
    from twinpath.kernels.paged_attention.kernel import PagedAttention
    from twinpath.kernels.prefill_attention.library import LibraryAttention

#: Steps of up to so many rows share a context of more tokens than this among programs. Such a step is not captured, and
#: its launches take 14 ms: what unshared attention adds to 128 rows of an 8B from about 10,000 tokens on.
FEW_ROWS = 512
LONG_CONTEXT = 12_288
#: Steps of up to so many rows take `StreamedProducts`.
STREAMED_ROWS = 128
#: So few rows of logits are taken by a kernel of our own (the head of an 8B in 231 us, by the library in 249).
FEW_LOGITS = 8


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows [row, row + length) of the request in `slot`, the first at position `start`."""

    row: int
    length: int
    start: int
    slot: int


def forward_bytes(weights: PackedWeights, max_rows: int, max_picks: int) -> int:
    """Bytes of `Forward`'s buffers."""
    spec, size = weights.spec, weights.embed.element_size()
    heads = 2 * spec.num_heads + 2 * spec.num_kv_heads + spec.num_heads
    per_row = 4 * spec.hidden_size + size * (2 * spec.hidden_size + heads * spec.head_dim + 3 * spec.intermediate_size)
    sums = STREAMED_ROWS * 4 * (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    return max_rows * per_row + max_picks * (4 * spec.vocab_size + size * spec.hidden_size) + sums


class Forward:
    """`embed`, then `layer` for each layer, then `logits`; all on the current stream, nothing allocated."""

    def __init__(
        self,
        weights: PackedWeights,
        kv: KvPool,
        operations: Operations,
        max_rows: int,
        max_picks: int,
        tiling: AttentionTiling,
        library: LibraryAttention | None = None,
    ) -> None:
        spec, device, dtype = weights.spec, weights.embed.device, weights.embed.dtype
        self.weights, self._kv, self._ops, self._tiling = weights, kv, operations, tiling
        self.library, self._ranks = library, operations.ranks
        self.shape = HeadShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, kv.page_size, spec.norm_eps)

        def buffer(rows: int, columns: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(rows, columns, dtype=kind, device=device)

        self._x = buffer(max_rows, spec.hidden_size)
        self._change = buffer(max_rows, spec.hidden_size)
        self._qkv = buffer(max_rows, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
        self._q = buffer(max_rows, spec.num_heads * spec.head_dim)
        self._attended = buffer(max_rows, spec.num_heads * spec.head_dim)
        self._gate_up = buffer(max_rows, 2 * spec.intermediate_size)
        self._gated = buffer(max_rows, spec.intermediate_size)
        num_tiles = -(-min(max_rows, FEW_ROWS) // rows_per_tile(self.shape, tiling)) + max_picks
        self._parts = KeyParts.allocate(self.shape, tiling, num_tiles, device) if tiling.shares_contexts else None
        self._streams: StreamedProducts | None = None
        #: Takes attention over from the operations, where the card and the model allow; shares contexts among programs
        #: for up to `FEW_ROWS` rows.
        self.paged: PagedAttention | None = None
        self._last = buffer(max_picks, spec.hidden_size)
        self.logits_buffer = buffer(max_picks, spec.vocab_size, torch.float32)
        self._own_logits = None if operations.ranks is None else buffer(max_picks, len(weights.head), torch.float32)

    def stream_products(self) -> None:
        """From now on few rows go through `StreamedProducts`, where the card and the model allow."""
        from twinpath.engine.cuda.streams import make_streams  # needs Triton's binaries, which a CPU may lack

        self._streams = make_streams(self.weights, self._x, self._attended, self._gated)

    def warm_products(self, row_counts: Iterable[int]) -> None:
        """Run the library's products for every number of rows that a step may have: it chooses a kernel by that number,
        and the first use of one takes 10 to 20 ms, which a ready server would owe its streams."""
        layer = self.weights.layers[0]
        for num_rows in row_counts:
            rows = slice(aligned(num_rows))
            self._ops.linear(self._x[rows], layer.qkv, self._qkv[rows])
            self._ops.linear(self._attended[rows], layer.o, self._change[rows])
            self._ops.linear(self._x[rows], layer.gate_up, self._gate_up[rows])
            self._ops.linear(self._gated[rows], layer.down, self._change[rows])

    @property
    def shares_contexts(self) -> bool:
        """Whether `layer` may `share`."""
        return self._parts is not None and self.paged is None

    def embed(self, rows: Rows, residual: Tensor) -> None:
        self._ops.embed_rows(rows, self.weights.embed, self.weights.spec.embed_scale, residual)

    def layer(
        self,
        index: int,
        rows: Rows,
        residual: Tensor,
        *,
        first: bool,
        chunks: Sequence[Chunk] = (),
        share: bool = False,
        streamed: bool = False,
    ) -> None:
        """One layer over residual float32 [R, hidden]; `first`: no layer before it left a change.

        share: programs share long contexts (FEW_ROWS at most). streamed: few rows take `StreamedProducts`; a captured
        step does, since launching those one by one takes longer than they.

        chunks: rows whose attention the library does; `rows.tiles` leaves them out.
        """
        weights, spec, num_rows = self.weights.layers[index], self.weights.spec, len(residual)
        x, change, streams = self._x[:num_rows], self._change[:num_rows], self._streams_of(num_rows, streamed)
        whole = None if streams is None else streams.layers
        if whole is None or first:
            self._add_change(index - 1, residual, weights.attn_norm, has_change=not first, streams=streams)
        qkv, q, attended = self._qkv[:num_rows], self._q[:num_rows], self._attended[:num_rows]
        if streams is None:
            self._ops.linear(x, weights.qkv, qkv)
        else:
            qkv = streams.qkv(index, num_rows) if whole is None or first else whole.qkv(num_rows)
        rope, pages = self.weights.rope_tables[spec.layer_rope[index]], (self._kv.k[index], self._kv.v[index])
        self._ops.rotate_append(
            qkv, weights.qkv_bias, weights.head_norms, rope, rows, q, pages, self.shape, pdl=streams is not None
        )
        self._attend(index, rows, chunks, num_rows, is_first=first, share=share, pdl=streams is not None)
        if whole is not None:
            whole.run(index, residual)
            return
        if streams is not None:
            change = streams.o(index, num_rows)
        else:
            self._ops.linear(attended, weights.o, change)
            if self._ranks is not None:
                self._ranks.add_up(change)
        post = weights.post_norms[0] if weights.post_norms else None
        self._ops.add_norm(
            residual, change, weights.mlp_norm, x, spec.norm_eps,
            bias=weights.o_bias, post_weight=post, pdl=streams is not None,
        )  # fmt: skip
        if streams is not None:
            streams.gate(index, num_rows)
            streams.down(index, num_rows)
            return
        gate_up, gated = self._gate_up[:num_rows], self._gated[:num_rows]
        self._ops.linear(x, weights.gate_up, gate_up)
        self._ops.gate(gate_up, spec.activation, gated)
        self._ops.linear(gated, weights.down, change)
        if self._ranks is not None:
            self._ranks.add_up(change)

    def _attend(
        self,
        index: int,
        rows: Rows,
        chunks: Sequence[Chunk],
        num_rows: int,
        *,
        is_first: bool,
        share: bool,
        pdl: bool,
    ) -> None:
        """From the layer's q, with keys and values on their pages, to `attended`."""
        spec, pages = self.weights.spec, (self._kv.k[index], self._kv.v[index])
        q, attended = self._q[:num_rows], self._attended[:num_rows]
        window, parts = spec.layer_window[index], self._parts if share else None
        if self.paged is None:
            self._ops.attend(q, rows, pages, attended, spec.attn_scale, window, self.shape, self._tiling, parts)
        else:
            if is_first:
                self.paged.plan(rows.tiles, splits=num_rows <= FEW_ROWS)
            self.paged.attend(index, q, rows.tables, attended, pdl=pdl)
        for chunk in chunks:
            assert self.library is not None
            own = slice(chunk.row, chunk.row + chunk.length)
            table = rows.tables[chunk.slot]
            self.library.attend(q[own], table, chunk.start, pages, attended[own], spec.attn_scale)

    def finish_layers(self, last_layer: int, residual: Tensor, *, streamed: bool = False) -> None:
        """Add what `last_layer` left; now `residual` may be kept, read or continued by another step."""
        streams = self._streams_of(len(residual), streamed)
        if streams is None or streams.layers is None:
            self._add_change(last_layer, residual, None, has_change=True, streams=streams)

    def logits(self, picked: Tensor, residual: Tensor) -> Tensor:
        """Rows `picked` int32 [P] of `residual` -> logits float32 [P, vocab], valid until the next call."""
        weights, num = self.weights, len(picked)
        last, out = self._last[:num], self.logits_buffer[:num]
        self._ops.add_norm(residual, None, weights.final_norm, last, weights.spec.norm_eps, picked=picked)
        if self._streams is not None and num <= FEW_LOGITS:
            self._streams.logits(last, out)
        elif self._ranks is None or self._own_logits is None:
            self._ops.linear(last, weights.head, out)
        else:
            own = self._own_logits[:num]
            self._ops.linear(last, weights.head, own)
            self._ranks.join(own, out)
        return out

    def _add_change(
        self,
        last_layer: int,
        residual: Tensor,
        next_norm: Tensor | None,
        *,
        has_change: bool,
        streams: StreamedProducts | None,
    ) -> None:
        num_rows, eps = len(residual), self.weights.spec.norm_eps
        post = None
        if has_change and (norms := self.weights.layers[last_layer].post_norms):
            post = norms[1]
        change = self._change[:num_rows] if streams is None else streams.change(num_rows)
        self._ops.add_norm(
            residual, change if has_change else None, next_norm, self._x[:num_rows], eps,
            post_weight=post, pdl=streams is not None and next_norm is not None,
        )  # fmt: skip

    def _streams_of(self, num_rows: int, streamed: bool) -> StreamedProducts | None:
        """Who computes the products of a step of so many rows; None: the library."""
        return self._streams if streamed and num_rows <= STREAMED_ROWS else None
