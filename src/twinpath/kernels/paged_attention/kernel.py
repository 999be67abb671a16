"""Compile and launch paged attention. `layout.cuh` says how it works."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from twinpath.kernels.nvrtc import CudaKernel, compile_cuda, tensor_map
from twinpath.kernels.paged_attention.spec import LANES, MAX_PARTS, num_part_slots
from twinpath.kernels.prefill_rows.spec import HeadShape

_SOURCES = ("../persistent_step/primitives.cuh", "wgmma.cuh", "layout.cuh", "plan.cu", "attention.cu")
_HEAD_DIM = 128
_PAGE_SIZE = 16
#: Query heads of a key head.
_MAX_GROUP = 16
_MAX_TILES = 1024
_NUM_THREADS = 384
_BLOCK_TOKENS = 128
#: The ring of key and value blocks, and what stands beside it.
_SHARED_BYTES = 3 * _BLOCK_TOKENS * _HEAD_DIM * 2 * 2 + 512
_ITEM_BYTES = 32


class PagedAttention:
    """Compiled for one model over one page pool; `plan` once for the rows of a step, then `attend` for each layer."""

    def __init__(
        self,
        shape: HeadShape,
        scale: float,
        pages: Sequence[tuple[Tensor, Tensor]],
        max_rows: int,
        max_tiles: int,
    ) -> None:
        """pages: k and v of each layer, [num_pages, K, page_size, D]. max_tiles: of one step; max_rows: of one whose
        contexts are split, beside rows that decode."""
        device = pages[0][0].device
        self._max_tiles = -(-max_tiles // 32) * 32
        macros = {
            "HEADS": shape.num_heads,
            "KV_HEADS": shape.num_kv_heads,
            "DIM": shape.head_dim,
            "SCALE": f"{scale * 1.4426950408889634!r}f",
            "MAX_TILES": self._max_tiles,
            "WARPS": 8,
            "WORLD": 1,
        }
        cubin = compile_cuda(source(), {name: str(value) for name, value in macros.items()}, "sm_90a")
        self._kernel = CudaKernel(cubin, "paged_attention", _SHARED_BYTES)
        self._planner = CudaKernel(cubin, "plan_attention", 0)
        self._num_programs = torch.cuda.get_device_properties(device).multi_processor_count
        self._maps = torch.tensor([_page_map(k, v) for k, v in pages], dtype=torch.int64, device=device)
        self._num_part_slots = num_part_slots(shape, max_rows)
        heads, lanes = shape.num_kv_heads, shape.num_heads // shape.num_kv_heads
        many, single = (self._num_part_slots, heads, LANES), (self._max_tiles, MAX_PARTS, heads, lanes)
        dim = shape.head_dim
        self._kept = [torch.zeros(*lead, last, device=device) for lead in (many, single) for last in (dim, 2)]
        self._arrivals = torch.zeros(self._max_tiles, heads, 2, dtype=torch.int32, device=device)
        self._items = torch.zeros(self._max_tiles * MAX_PARTS, _ITEM_BYTES // 4, dtype=torch.int32, device=device)
        self._counts = torch.zeros(1 + len(pages), dtype=torch.int32, device=device)
        self._pages = pages

    def plan(self, tiles: Tensor, *, splits: bool = True) -> None:
        """List the work of a step's tiles, int32 [T, 4] as in `Rows`; splits: long contexts are cut into parts."""
        if len(tiles) > self._max_tiles:
            raise ValueError(f"{len(tiles)} tiles, this kernel was compiled for {self._max_tiles}")
        values = [tensor.data_ptr() for tensor in (tiles, self._items, self._counts)]
        values += [len(tiles), len(self._counts) - 1, self._num_part_slots, int(splits)]
        self._planner.launch(1, self._max_tiles, values)

    def attend(self, layer: int, q: Tensor, tables: Tensor, out: Tensor, *, pdl: bool = False) -> None:
        """Planned rows over their own context, which the pages hold up to and including themselves. Once a plan.

        Shapes: q and out [R, H * D]; tables int32 [slots, max pages].
        pdl: may begin while the kernel before it ends; it waits for it by itself.
        """
        kept = [self._maps[layer], *self._kept, self._arrivals, self._items, self._counts, self._counts[1 + layer :]]
        values = [tensor.data_ptr() for tensor in (q, out, tables, *kept)]
        self._kernel.launch(self._num_programs, _NUM_THREADS, [*values, tables.stride(0), int(pdl)], dependent=pdl)


def is_supported(shape: HeadShape, device: torch.device, dtype: torch.dtype, max_tiles: int) -> bool:
    """Hopper, bfloat16, heads of 128, pages of 16, a power of two of query heads to a key head."""
    group = shape.num_heads // shape.num_kv_heads
    fits = shape.head_dim == _HEAD_DIM and shape.page_size == _PAGE_SIZE and max_tiles <= _MAX_TILES
    if device.type != "cuda" or dtype != torch.bfloat16 or not fits or group & (group - 1) or group > _MAX_GROUP:
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


@cache
def source() -> str:
    """All files as one text: NVRTC sees no files."""
    folder = Path(__file__).parent
    return "".join((folder / name).read_text(encoding="utf-8") for name in _SOURCES)


def _page_map(k: Tensor, v: Tensor) -> list[int]:
    """Boxes of one page of one key head, [keys, values][dim / 64][page size][64] in shared memory."""
    dim, lines = k.shape[-1], k.numel() // k.shape[-1]
    apart = (v.data_ptr() - k.data_ptr()) // k.element_size()
    return tensor_map(k, (64, lines, dim // 64, 2), (dim, 64, apart), (64, k.shape[-2], dim // 64, 2))
