"""The cluster sampler's own source, compiled for the CPU: every thread of its cluster runs (see cuda_on_cpu.h)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
from torch import Tensor

from twinpath.kernels.cluster_sampler.kernel import ClusterShape, launch_values, sampler_source
from twinpath.kernels.sampler.spec import SlotState, Workspace

_DRIVER = """
static Args arguments;
static void entry() { sample_rows(arguments); }
extern "C" unsigned int shared_bytes() { return sizeof(Shared); }
extern "C" void run_rows(const i64* values, int num_rows) {
  std::memcpy(&arguments, values, sizeof(arguments));
  for (int row = 0; row < num_rows; ++row) {
    cpu::block_index.y = row;
    cpu::run_cluster(entry, sizeof(Shared));
  }
}
"""


def compiler() -> str | None:
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


class EmulatedSampler:
    """Called as `kernels.sampler.launch.sample_rows`."""

    def __init__(self, shape: ClusterShape, folder: Path) -> None:
        self.shape = shape
        source = folder / f"sampler_{shape.vocab_size}_{shape.cluster}_{shape.threads}.cpp"
        library = source.with_suffix(".so")
        source.write_text('#include "cuda_on_cpu.h"\n' + sampler_source() + _DRIVER)
        macros = [f"-D{name}={value}" for name, value in shape.macros().items()]
        command = [compiler() or "c++", "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", *macros]
        subprocess.run(
            [*command, "-I", str(Path(__file__).parent), "-o", str(library), str(source)], check=True, timeout=100
        )
        self._library = ctypes.CDLL(str(library))

    @property
    def shared_bytes(self) -> int:
        return int(self._library.shared_bytes())

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
        values = np.array(launch_values(logits, row_slots, row_positions, row_masks, state, work), np.int64)
        self._library.run_rows(values.ctypes.data_as(ctypes.c_void_p), num_rows)
