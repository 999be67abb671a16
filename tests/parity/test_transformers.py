"""The reference model against Transformers, tiny random models of each family, float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from parity import tiny_models
from parity.reference_rows import ReferenceRows, open_model, relative_error
from twinpath.types import Float32s

#: The issue's bound on max |a - b| / max |b|.
TOLERANCE = 1e-5


def random_sequences(*lengths: int, seed: int = 7) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, tiny_models.VOCAB_SIZE, length).tolist() for length in lengths]


def right_logits(model: PreTrainedModel, tokens: list[int]) -> Float32s:
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


@pytest.fixture(scope="module", params=list(tiny_models.CONFIGS))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, ReferenceRows]:
    directory: Path = tmp_path_factory.mktemp(request.param)
    model = tiny_models.save(request.param, directory)
    return model, ReferenceRows(*open_model(directory))


def test_a_prompt_longer_than_every_window(pair: tuple[PreTrainedModel, ReferenceRows]) -> None:
    model, reference = pair
    (tokens,) = random_sequences(75)
    (logits,) = reference.logits([tokens])
    assert relative_error(logits, right_logits(model, tokens)) <= TOLERANCE


@pytest.mark.parametrize("chunk_tokens", [1, 13])
def test_chunks_of_a_ragged_batch_over_scrambled_pages(
    pair: tuple[PreTrainedModel, ReferenceRows], chunk_tokens: int
) -> None:
    model, reference = pair
    sequences = random_sequences(41, 3, 26)
    for tokens, logits in zip(sequences, reference.logits(sequences, chunk_tokens, seed=chunk_tokens), strict=True):
        assert relative_error(logits, right_logits(model, tokens)) <= TOLERANCE


def test_two_layer_slices_give_the_same_bits_as_one(pair: tuple[PreTrainedModel, ReferenceRows]) -> None:
    _, reference = pair
    sequences = random_sequences(24, 9)
    whole = reference.logits(sequences, 8)
    sliced = reference.logits(sequences, 8, slices=(2,))
    for one, other in zip(whole, sliced, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_a_window_wrong_by_one_token_would_be_seen(name: str, tmp_path: Path) -> None:
    model = tiny_models.save(name, tmp_path)
    spec, weights = open_model(tmp_path)
    wrong = replace(spec, layer_window=tuple(w and w + 1 for w in spec.layer_window))
    (tokens,) = random_sequences(75)
    (logits,) = ReferenceRows(wrong, weights).logits([tokens])
    assert relative_error(logits, right_logits(model, tokens)) > 100 * TOLERANCE
