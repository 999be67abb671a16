"""The native step against the reference on the same dequantised weights: every family, format and kernel set here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from engine.random_models import SPECS, VOCAB_SIZE, random_weights
from parity.divergence import Divergence, diverge, join
from parity.k_quants import quantize
from parity.native_rows import NativeRows
from parity.reference_rows import ReferenceRows, open_model
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights, WeightType
from twinpath.native.library import load_library
from twinpath.types import Float32s

#: What the project promises of 16-bit activations.
MAX_MEAN_KL = 1e-4
MIN_CLEAR_AGREEMENT = 0.995

#: To the end of the window, longer than every sliding one, and a short one between.
SEQUENCES = [np.random.default_rng(n).integers(0, VOCAB_SIZE, n).tolist() for n in (160, 3, 61)]
#: Columns everywhere a multiple of the K formats' 256.
WIDE = replace(
    SPECS["llama"], hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, head_dim=64, attn_scale=0.125
)

ISAS = load_library().usable_isas()


@cache
def family(name: str) -> tuple[ModelSpec, Weights, list[Float32s]]:
    spec = SPECS[name]
    weights = random_weights(spec)
    return spec, weights, ReferenceRows(spec, weights).logits(SEQUENCES)


@cache
def stored_as(weight_type: WeightType) -> tuple[ModelSpec, Weights, list[Float32s]]:
    weights = random_weights(WIDE, weight_type=weight_type, quantize=quantize)
    return WIDE, weights, ReferenceRows(WIDE, weights).logits(SEQUENCES)


def native_divergence(model: tuple[ModelSpec, Weights, list[Float32s]], isa: str, bits: int = 16) -> Divergence:
    spec, weights, right = model
    native = NativeRows(spec, weights, isa, bits)  # type: ignore[arg-type]
    logits = native.logits(SEQUENCES, chunk_tokens=17)
    native.close()
    return join(diverge(rows, wanted) for rows, wanted in zip(logits, right, strict=True))


def assert_as_promised(divergence: Divergence) -> None:
    assert divergence.is_clear.any()
    assert divergence.mean_kl <= MAX_MEAN_KL
    assert divergence.clear_agreement >= MIN_CLEAR_AGREEMENT


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", list(SPECS))
def test_every_family(name: str, isa: str) -> None:
    assert_as_promised(native_divergence(family(name), isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", list(WeightType))
def test_every_format(weight_type: WeightType, isa: str) -> None:
    assert_as_promised(native_divergence(stored_as(weight_type), isa))


def test_eight_bit_activations_are_worse_by_orders_of_magnitude() -> None:
    """So the measure sees what the choice of sixteen bits is about."""
    model = stored_as(WeightType.Q4_1)
    assert native_divergence(model, "auto", bits=8).mean_kl > 100 * native_divergence(model, "auto", bits=16).mean_kl


@pytest.fixture(scope="module", params=ISAS)
def native(request: pytest.FixtureRequest) -> Iterator[NativeRows]:
    spec, weights, _ = stored_as(WeightType.Q4_K)
    rows = NativeRows(replace(spec, layer_window=(None, 16, None)), weights, request.param, max_rows=512)
    yield rows
    rows.close()


@pytest.mark.parametrize(("chunk_tokens", "seed"), [(1, 1), (7, 2), (64, 3), (160, 4)])
def test_bits_do_not_depend_on_chunks_pages_or_company(native: NativeRows, chunk_tokens: int, seed: int) -> None:
    together = native.logits(SEQUENCES, chunk_tokens, seed)
    for sequence, logits in zip(SEQUENCES, together, strict=True):
        (alone,) = native.logits([sequence], 33, seed + 10)
        np.testing.assert_array_equal(logits, alone)


def test_bits_do_not_depend_on_threads(native: NativeRows) -> None:
    two = native.logits(SEQUENCES, 29)
    try:
        for num_threads in (1, 3):
            native.model.set_threads(num_threads)
            for logits, wanted in zip(native.logits(SEQUENCES, 29), two, strict=True):
                np.testing.assert_array_equal(logits, wanted)
    finally:
        native.model.set_threads(2)


@pytest.mark.model
def test_the_default_model(default_model_path: Path) -> None:
    """A short version of benchmarks/parity.py, which compares thousands of positions in every format."""
    spec, weights = open_model(default_model_path)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, spec.vocab_size, 60).tolist() for _ in range(3)]
    right = ReferenceRows(spec, weights).logits(sequences)
    native = NativeRows(spec, weights)
    logits = native.logits(sequences, 25)
    native.close()
    assert_as_promised(join(diverge(rows, wanted) for rows, wanted in zip(logits, right, strict=True)))
