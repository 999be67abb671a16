"""Compile and launch the product. `linear.cu` says how it works."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from twinpath.kernels.nvrtc import CudaKernel, compile_cuda, tensor_map
from twinpath.kernels.stream_linear.spec import (
    STAGE_COLUMNS,
    Cut,
    LinearShape,
    num_stages,
    shared_bytes,
)

_GROUP_ROWS = 64


class StreamLinear:
    """One compiled shape: `rows` (a multiple of 64) rows of x at most."""

    def __init__(self, shape: LinearShape, rows: int, cut: Cut) -> None:
        self.shape, self.rows, self.cut = shape, rows, cut
        cubin = compile_cuda(source(cut.tile), macros(shape, rows, cut), "sm_90a")
        self._kernel = CudaKernel(cubin, "stream_linear", shared_bytes(cut.tile, rows))
        self._num_programs = shape.num_tiles(cut) * cut.splits
        self._num_threads = (rows // _GROUP_ROWS * 4 + 1) * 32

    def weight_map(self, weight: Tensor) -> list[int]:
        """Words by which the card finds tiles of `weight` [outputs (twice, gated), summed]."""
        box = self.cut.tile // 2 if self.shape.gated else self.cut.tile
        return box_map(weight, box)

    def row_map(self, x: Tensor) -> list[int]:
        """The same for the rows of `x` [any, summed]: those past `rows`, or past the end, are not read."""
        return box_map(x, self.rows)

    def launch(
        self,
        weight_map: Tensor,
        row_map: Tensor,
        out: Tensor,
        *,
        dependent: bool = True,
    ) -> None:
        """out [R, outputs] = the product, by maps that stand on the card; float32, or bfloat16 when gated.

        dependent: as `CudaKernel.launch`; nothing but the weights is touched before the kernel before has ended.
        """
        values = [weight_map.data_ptr(), row_map.data_ptr(), out.data_ptr(), len(out)]
        self._kernel.launch(self._num_programs, self._num_threads, values, dependent=dependent)


def box_map(matrix: Tensor, box_rows: int) -> list[int]:
    """Words by which the copy engine finds boxes of `box_rows` lines of a bfloat16 matrix."""
    num_rows, columns = matrix.shape
    return tensor_map(matrix, (columns, num_rows), (matrix.stride(0),), (STAGE_COLUMNS, box_rows))


def maps_on_card(maps: list[list[int]], device: torch.device) -> Tensor:
    """Maps as rows of one tensor, each aligned as the copy engine wants."""
    return torch.tensor(maps, dtype=torch.int64, device=device)


def macros(shape: LinearShape, rows: int, cut: Cut) -> dict[str, str]:
    values = {
        "ROWS": rows,
        "TILE": cut.tile,
        "STEPS": shape.summed // STAGE_COLUMNS,
        "SPLITS": cut.splits,
        "COLUMNS": shape.outputs,
        "TILES": shape.num_tiles(cut),
        "STAGES": num_stages(cut.tile, rows),
        "GATED": int(shape.gated),
        "GELU": int(shape.gelu),
        "SHARED_BYTES": shared_bytes(cut.tile, rows),
    }
    return {name: str(value) for name, value in values.items()}


@cache
def source(tile: int) -> str:
    """All files as one text: NVRTC sees no files."""
    folder = Path(__file__).parent
    primitives, linear = ((folder / name).read_text(encoding="utf-8") for name in ("primitives.cuh", "linear.cu"))
    return primitives + multiply_tile(tile) + linear


def multiply_tile(tile: int) -> str:
    """The tensor cores' instruction for this tile: sums[64 x tile] = rows[64 x 16] weights[tile x 16]^T, plus the sums
    there were if `adds`."""
    num = tile // 2
    registers = ", ".join(f"%{i}" for i in range(num))
    operands = ", ".join(f'"+f"(sums[{i}])' for i in range(num))
    return f"""
__device__ __forceinline__ void multiply_tile(float (&sums)[{num}], u64 rows, u64 weights, int adds) {{
  asm volatile(
      "{{\\n.reg .pred p;\\nsetp.ne.s32 p, %{num + 2}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{tile}k16.f32.bf16.bf16 "
      "{{{registers}}}, %{num}, %{num + 1}, p, 1, 1, 0, 0;\\n}}"
      : {operands}
      : "l"(rows), "l"(weights), "r"(adds));
}}
"""
