"""One weight tensor as it lies in its file: quantised or not, mapped, not copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class WeightType(StrEnum):
    """Storage formats; names as GGUF spells them."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"


#: Elements per block and bytes per block of each storage format.
BLOCK_LAYOUT: Mapping[WeightType, tuple[int, int]] = {
    WeightType.F32: (1, 4),
    WeightType.F16: (1, 2),
    WeightType.BF16: (1, 2),
    WeightType.Q8_0: (32, 34),
    WeightType.Q5_0: (32, 22),
    WeightType.Q5_1: (32, 24),
    WeightType.Q4_0: (32, 18),
    WeightType.Q4_1: (32, 20),
    WeightType.Q4_K: (256, 144),
    WeightType.Q5_K: (256, 176),
    WeightType.Q6_K: (256, 210),
}


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """A matrix [rows, cols] (or a vector: rows == 1) in one storage format.

    Shapes: data uint8 [rows, row_bytes], C-contiguous rows, usually a view of a file mapping.
    """

    name: str
    type: WeightType
    rows: int
    cols: int
    data: NDArray[np.uint8]


def quoted(name: str) -> str:
    """A name from a file, fit for a one-line message whatever it holds."""
    return repr(name if len(name) <= 100 else f"{name[:100]}...")


#: Canonical name -> tensor; see `twinpath.model.spec` for the names.
Weights = Mapping[str, WeightTensor]


#: (how many, of how many, which): told of each weight as it is read.
Report = Callable[[int, int, str], None]


class ReportedWeights(Mapping[str, WeightTensor]):
    """Weights that say how many of them were asked for."""

    def __init__(self, weights: Weights, report: Report) -> None:
        self._weights = weights
        self._report = report
        self._num_done = 0

    def __getitem__(self, name: str) -> WeightTensor:
        tensor = self._weights[name]
        self._num_done += 1
        self._report(self._num_done, len(self._weights), name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
