"""Block formats -> float32, in numpy, bit for bit what ggml's reference (`ggml-quants.c`, `dequantize_row_*`) gives.

The slow twin of the native kernels: clear, exact, used to load the reference engine and to check everything else.

Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from twinpath.model.tensors import BLOCK_LAYOUT, WeightTensor, WeightType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def dequantize(tensor: WeightTensor) -> Floats:
    """All values of `tensor`.

    Shapes: returns float32 [rows, cols], a fresh array.
    """
    _, block_bytes = BLOCK_LAYOUT[tensor.type]
    values = _DECODERS[tensor.type](tensor.data.reshape(-1, block_bytes))
    return values.reshape(tensor.rows, tensor.cols)


def _f32(blocks: Bytes) -> Floats:
    return np.array(np.ascontiguousarray(blocks).view("<f4"), dtype=np.float32)


def _half(blocks: Bytes, start: int) -> Floats:
    """The fp16 at byte `start` of each block: float32 [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return _half(blocks, 0)


def _bf16(blocks: Bytes) -> Floats:
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, k] bytes -> [n, 2k]: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    """The 32 bits at `start`, least significant first, each worth 16: uint8 [num_blocks, 32]."""
    bits: Bytes = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8.0)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (codes.astype(np.float32) - 16.0)


def _q5_1(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of the eight 32-value groups of a Q4_K or Q5_K block: float32 [num_blocks, 8] each.

    Twelve bytes hold 8 + 8 six-bit numbers: the first four pairs whole, the upper bits of their bytes completing the
    last four.
    """
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return _half(blocks, 0) * scales.astype(np.float32), _half(blocks, 2) * minima.astype(np.float32)


def _k_codes(packed: Bytes) -> Bytes:
    """128 bytes of a K block -> 256 nibbles in order: each 32 bytes hold one group low and the next one high."""
    quads = packed.reshape(-1, 4, 1, 32)
    codes: Bytes = np.concatenate([quads & 15, quads >> 4], axis=2)
    return codes.reshape(-1, 8, 32)


def _k_values(blocks: Bytes, codes: Bytes) -> Floats:
    scales, minima = _k_scales(blocks)
    return scales[:, :, None] * codes.astype(np.float32) - minima[:, :, None]


def _q4_k(blocks: Bytes) -> Floats:
    return _k_values(blocks, _k_codes(blocks[:, 16:]))


def _q5_k(blocks: Bytes) -> Floats:
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & np.uint8(1)
    return _k_values(blocks, _k_codes(blocks[:, 48:]) | (high << np.uint8(4)))


def _q6_k(blocks: Bytes) -> Floats:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]) & 3
    codes = (low | (high << 4)).reshape(-1, 16, 16).astype(np.float32) - 32.0
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    values: Floats = scales[:, :, None] * codes
    return values


_DECODERS: Mapping[WeightType, Callable[[Bytes], Floats]] = {
    WeightType.F32: _f32,
    WeightType.F16: _f16,
    WeightType.BF16: _bf16,
    WeightType.Q8_0: _q8_0,
    WeightType.Q5_0: _q5_0,
    WeightType.Q5_1: _q5_1,
    WeightType.Q4_0: _q4_0,
    WeightType.Q4_1: _q4_1,
    WeightType.Q4_K: _q4_k,
    WeightType.Q5_K: _q5_k,
    WeightType.Q6_K: _q6_k,
}
