"""Compile and launch the cluster sampler. `sampler.cu` says how it works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from twinpath.kernels.nvrtc import CudaKernel, compile_cuda
from twinpath.kernels.sampler.spec import SlotState, Workspace

_SOURCES = ("layout.cuh", "ranks.cuh", "adjust.cuh", "few.cuh", "many.cuh", "logprobs.cuh", "sampler.cu")
#: Dynamic shared memory of one block on sm_90.
_SHARED_BYTES = 227 * 1024
#: Ids that ranks can hold.
_MAX_VOCAB = 1 << 20
#: Blocks of a cluster that every Hopper card runs.
_PORTABLE = 8
#: Blocks a row and threads a block. An H200 runs at least four clusters of 16 at a time, not eight.
_FEW, _MANY = (16, 512), (8, 1024)
_FEW_ROWS = 4

Sampler = Callable[..., None]


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """What the kernel is compiled for: blocks a row, threads a block."""

    vocab_size: int
    cluster: int
    threads: int

    @property
    def chunk(self) -> int:
        """Ids of one block, as in layout.cuh."""
        share = -(-self.vocab_size // self.cluster)
        return -(-share // (4 * self.threads)) * 4 * self.threads

    @property
    def shared_bytes(self) -> int:
        """At least `sizeof(Shared)`."""
        warps = self.threads // 32 * self.cluster
        bins = min(self.threads, 4096 // self.cluster) * self.cluster
        return 4 * self.chunk + 12 * bins + 16 * warps + 40 * self.threads + 8 * 8 * self.cluster + 3072

    def macros(self) -> dict[str, str]:
        aligned = int(self.vocab_size % 4 == 0)
        values = {"VOCAB": self.vocab_size, "CLUSTER": self.cluster, "THREADS": self.threads, "ALIGNED": aligned}
        return {name: str(value) for name, value in values.items()}


class ClusterKernel:
    """One compiled shape."""

    def __init__(self, shape: ClusterShape) -> None:
        self.shape = shape
        cubin = compile_cuda(_folder("primitives.cuh") + sampler_source(), shape.macros(), "sm_90a")
        self._kernel = CudaKernel(cubin, "sample_rows", shape.shared_bytes, wide_clusters=shape.cluster > _PORTABLE)

    def launch(self, num_rows: int, values: Sequence[int]) -> None:
        self._kernel.launch((self.shape.cluster, num_rows), self.shape.threads, values, dependent=True)


class ClusterSampler:
    """One vocabulary, compiled for few rows and for more. Calling it is one kernel; it may be captured."""

    def __init__(self, few: ClusterShape, many: ClusterShape) -> None:
        self._few, self._many = ClusterKernel(few), ClusterKernel(many)

    def __call__(
        self,
        logits: Tensor,
        row_slots: Tensor,
        row_positions: Tensor,
        row_masks: Tensor,
        state: SlotState,
        work: Workspace,
        *,
        num_rows: int,
        greedy: bool = False,
    ) -> None:
        """As `kernels.sampler.launch.sample_rows`."""
        values = launch_values(logits, row_slots, row_positions, row_masks, state, work)
        (self._few if num_rows <= _FEW_ROWS else self._many).launch(num_rows, values)


def build_sampler(vocab_size: int, device: torch.device) -> Sampler | None:
    """Compiled for this vocabulary. None: not Hopper, or more ids than a cluster holds."""
    shapes = [ClusterShape(vocab_size, cluster, threads) for cluster, threads in (_FEW, _MANY)]
    fits = vocab_size <= _MAX_VOCAB and all(shape.shared_bytes <= _SHARED_BYTES for shape in shapes)
    if device.type != "cuda" or not fits or torch.cuda.get_device_capability(device) != (9, 0):
        return None
    return ClusterSampler(*shapes)


def launch_values(
    logits: Tensor, row_slots: Tensor, row_positions: Tensor, row_masks: Tensor, state: SlotState, work: Workspace
) -> list[int]:
    """The kernel's struct, as layout.cuh has it."""
    tables = (state.counts, state.bias, state.biased, state.stops, work.allowed, work.tokens, work.codes, work.scores)
    return [
        logits.data_ptr(),
        logits.stride(0),
        *(tensor.data_ptr() for tensor in (row_slots, row_positions, row_masks, state.floats, state.ints)),
        state.history.data_ptr(),
        state.history.stride(0),
        *(tensor.data_ptr() for tensor in tables),
    ]


@cache
def sampler_source() -> str:
    """All files but the machine's primitives as one text: NVRTC sees no files."""
    return "".join(_folder(name) for name in _SOURCES)


def _folder(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
