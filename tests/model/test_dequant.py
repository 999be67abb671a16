"""Every block format, bit for bit what the `gguf` package gives."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from twinpath.model.dequant import dequantize
from twinpath.model.tensors import BLOCK_LAYOUT, WeightTensor, WeightType


@pytest.mark.parametrize("weight_type", WeightType)
def test_random_bytes_as_the_gguf_package_reads_them(weight_type: WeightType) -> None:
    """All codes, scales and minima occur; so do infinite and NaN scales."""
    block, block_bytes = BLOCK_LAYOUT[weight_type]
    data = np.random.default_rng(3).integers(0, 256, (67, 3 * block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantize(WeightTensor("t", weight_type, 67, 3 * block, data))
        right = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[weight_type.name])
    assert ours.dtype == np.float32 and ours.shape == right.shape == (67, 3 * block)
    assert np.array_equal(ours, right, equal_nan=True)


@pytest.mark.parametrize("weight_type", WeightType)
def test_result_is_a_fresh_array(weight_type: WeightType) -> None:
    block, block_bytes = BLOCK_LAYOUT[weight_type]
    data = np.zeros((1, block_bytes), np.uint8)
    data.flags.writeable = False
    values = dequantize(WeightTensor("t", weight_type, 1, block, data))
    values += 1.0
    assert not data.any()


def test_by_hand() -> None:
    """One Q4_1 block: scale 0.5, minimum -1, codes counting up in the low nibbles and down in the high ones."""
    head = np.array([0.5, -1.0], "<f2").tobytes()
    data = np.frombuffer(head + bytes(code | (15 - code) << 4 for code in range(16)), np.uint8)
    values = dequantize(WeightTensor("t", WeightType.Q4_1, 1, 32, data.reshape(1, 20)))
    assert values[0].tolist() == [0.5 * c - 1 for c in range(16)] + [0.5 * (15 - c) - 1 for c in range(16)]
