"""Every storage format on every kernel set of this machine, against float64 products of the `gguf` package's values."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from parity.k_quants import quantize
from twinpath.model.tensors import WeightType
from twinpath.native.library import FORMAT_IDS, NativeLibrary, load_library

ROWS, COLS = 37, 512  # a last group of 5 rows; whole blocks of every format
ISAS = load_library().usable_isas()
#: Greatest integer of a quantised 32-block of activations.
TOP = {16: 32639, 8: 127}


def file_bytes(kind: WeightType, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(quantize(values, kind)).view(np.uint8).reshape(len(values), -1)


def oracle(kind: WeightType, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    if kind in (WeightType.F32, WeightType.F16):
        return data.view(np.float32 if kind == WeightType.F32 else np.float16).astype(np.float32)
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])


def random_values(seed: int, rows: int, cols: int) -> NDArray[np.float32]:
    """Rows of different size, as weights have them."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, cols), np.float32) * rng.uniform(0.01, 1, (rows, 1)).astype(np.float32)


def native_gemm(
    library: NativeLibrary,
    isa: str,
    kind: WeightType,
    data: NDArray[np.uint8],
    x: NDArray[np.float32],
    bits: int,
    rows: int,
) -> NDArray[np.float32]:
    y = np.full((len(x), rows), np.nan, np.float32)
    status = library.handle.tp_test_gemm(
        isa.encode(), FORMAT_IDS[kind], rows, x.shape[1], data.ctypes.data, x.ctypes.data, len(x), bits, y.ctypes.data
    )
    assert status == 0
    return y


def greatest_error(
    kind: WeightType, weights: NDArray[np.float64], x: NDArray[np.float32], bits: int
) -> NDArray[np.float64]:
    """Activations are off by half a step of their block at most, and fp32 sums round."""
    magnitude = np.abs(weights).reshape(len(weights), -1, 32)
    tops = np.abs(x).reshape(len(x), -1, 32).max(axis=2).astype(np.float64)
    rounding = 1e-6 * np.einsum("tb,rbc->tr", tops, magnitude)
    if kind in (WeightType.F32, WeightType.F16, WeightType.BF16):
        return rounding
    return rounding + np.einsum("tb,rbc->tr", 0.50001 * tops / TOP[bits], magnitude)


@pytest.mark.parametrize("kind", list(WeightType))
def test_packed_values_are_those_of_the_file(library: NativeLibrary, kind: WeightType) -> None:
    data = file_bytes(kind, random_values(1, ROWS, COLS))
    out = np.full((ROWS, COLS), np.nan, np.float32)
    assert library.handle.tp_test_dequantize(FORMAT_IDS[kind], ROWS, COLS, data.ctypes.data, out.ctypes.data) == 0
    np.testing.assert_array_equal(out, oracle(kind, data))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", list(WeightType))
def test_products_of_every_tile_size(library: NativeLibrary, kind: WeightType, bits: int, isa: str) -> None:
    data = file_bytes(kind, random_values(2, ROWS, COLS))
    x = np.random.default_rng(3).standard_normal((15, COLS), np.float32)  # tiles of 8, 4, 2 and 1
    x[:, 7] *= 50  # an outlier column, as real activations have
    weights = oracle(kind, data).astype(np.float64)
    right = x.astype(np.float64) @ weights.T
    got = native_gemm(library, isa, kind, data, x, bits, ROWS)
    assert (np.abs(got - right) <= greatest_error(kind, weights, x, bits)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", list(WeightType))
def test_a_token_has_the_same_bits_in_every_tile(library: NativeLibrary, kind: WeightType, isa: str) -> None:
    data = file_bytes(kind, random_values(4, ROWS, COLS))
    x = np.random.default_rng(5).standard_normal((15, COLS), np.float32)
    together = native_gemm(library, isa, kind, data, x, 16, ROWS)
    for token in (0, 7, 8, 11, 13, 14):
        alone = native_gemm(library, isa, kind, data, x[token : token + 1].copy(), 16, ROWS)
        np.testing.assert_array_equal(together[token], alone[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(library: NativeLibrary, isa: str, value: float) -> None:
    data = file_bytes(WeightType.Q4_1, random_values(6, 16, 64))
    x = np.ones((2, 64), np.float32)
    x[0, 40] = value
    got = native_gemm(library, isa, WeightType.Q4_1, data, x, 16, 16)
    assert not np.isfinite(got[0]).any()
    assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_zero_and_tiny_inputs_give_zero(library: NativeLibrary, isa: str) -> None:
    data = file_bytes(WeightType.Q8_0, random_values(7, 16, 64))
    x = np.zeros((2, 64), np.float32)
    x[1] = 1e-40
    np.testing.assert_array_equal(native_gemm(library, isa, WeightType.Q8_0, data, x, 16, 16), 0)
