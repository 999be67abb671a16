"""Float32 matrices -> GGUF block formats, for tests: the `gguf` package where it can, plain rounding for the K formats.

The layouts follow ggml's `block_q4_K`, `block_q5_K`, `block_q6_K`; scales come from each group's extremes, without
llama.cpp's error search. Decoding is never done here, so a wrong layout cannot confirm itself.
Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def quantize(values: Floats, tensor_type: str) -> Bytes | NDArray[np.float16] | Floats:
    """Block bytes [rows, row_bytes] of `values` [rows, cols] (F32 and F16: the numbers themselves)."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if tensor_type.endswith("_K"):
        blocks = _K_FORMATS[tensor_type](values.reshape(-1, 256))
        return blocks.reshape(values.shape[0], -1)
    data: Bytes = gguf.quants.quantize(values, GGMLQuantizationType[tensor_type])
    return data


def _halves(values: Floats) -> Bytes:
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)


def _affine_groups(blocks: Floats, levels: int) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Codes [n, 8, 32] in 0..levels, six-bit scales and minima [n, 8], and the fp16 pair (d, dmin) as bytes [n, 4]."""
    groups = blocks.reshape(-1, 8, 32)
    lowest = np.minimum(groups.min(-1), 0.0)
    scale = (groups.max(-1) - lowest) / levels
    d = (scale.max(-1, keepdims=True) / 63).astype(np.float16).astype(np.float32)
    dmin = (-lowest.min(-1, keepdims=True) / 63).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(scale / np.maximum(d, 1e-12)), 0, 63)
    minima = np.clip(np.rint(-lowest / np.maximum(dmin, 1e-12)), 0, 63)
    step = np.maximum((d * scales)[..., None], 1e-12)
    codes = np.clip(np.rint((groups + (dmin * minima)[..., None]) / step), 0, levels)
    pair = np.concatenate([_halves(d), _halves(dmin)], axis=1)
    return codes.astype(np.uint8), scales.astype(np.uint8), minima.astype(np.uint8), pair


def _pack_six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """`get_scale_min_k4` read backwards: [n, 8] and [n, 8] -> [n, 12]."""
    packed = np.zeros((len(scales), 12), dtype=np.uint8)
    for j in range(4):
        packed[:, j] = scales[:, j] | (scales[:, j + 4] >> 4) << 6
        packed[:, j + 4] = minima[:, j] | (minima[:, j + 4] >> 4) << 6
        packed[:, j + 8] = scales[:, j + 4] & 15 | (minima[:, j + 4] & 15) << 4
    return packed


def _pack_nibbles(codes: Bytes) -> Bytes:
    """[n, 8, 32] -> [n, 128]: groups 2j low, 2j + 1 high."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(len(codes), 128)


def _q4_k(blocks: Floats) -> Bytes:
    codes, scales, minima, pair = _affine_groups(blocks, 15)
    return np.concatenate([pair, _pack_six_bits(scales, minima), _pack_nibbles(codes)], axis=1)


def _q5_k(blocks: Floats) -> Bytes:
    codes, scales, minima, pair = _affine_groups(blocks, 31)
    high = np.zeros((len(codes), 32), dtype=np.uint8)
    for group in range(8):
        high |= (codes[:, group] >> 4) << group
    return np.concatenate([pair, _pack_six_bits(scales, minima), high, _pack_nibbles(codes & 15)], axis=1)


def _q6_k(blocks: Floats) -> Bytes:
    groups = blocks.reshape(-1, 16, 16)
    scale = np.abs(groups).max(-1) / 31
    d = (scale.max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(scale / np.maximum(d, 1e-12)), 0, 127)
    step = np.maximum((d * scales)[..., None], 1e-12)
    codes = (np.clip(np.rint(groups / step), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate(
        [codes[:, :, 0] & 15 | (codes[:, :, 2] & 15) << 4, codes[:, :, 1] & 15 | (codes[:, :, 3] & 15) << 4], -1
    )
    high = codes[:, :, 0] >> 4 | codes[:, :, 1] >> 4 << 2 | codes[:, :, 2] >> 4 << 4 | codes[:, :, 3] >> 4 << 6
    parts = [low.reshape(-1, 128), high.reshape(-1, 64), scales.astype(np.int8).view(np.uint8), _halves(d)]
    return np.concatenate(parts, axis=1)


_K_FORMATS = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}
