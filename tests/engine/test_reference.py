"""The reference engine beyond the shared contract: Transformers' own tokens, and an engine that breaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.random_models import SPECS, random_weights
from engine.step_driver import Driver
from parity import tiny_models
from parity.reference_rows import open_model
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_memory import ReferenceOptions
from twinpath.engine.reference_model import ReferenceModel
from twinpath.errors import EngineError

OPTIONS = ReferenceOptions(page_size=4, num_pages=64, max_slots=4, max_step_tokens=64)
PROMPT = [int(i) for i in np.random.default_rng(11).integers(3, tiny_models.VOCAB_SIZE, 37)]


@pytest.mark.parametrize("name", ["llama3", "gemma3"])
def test_greedy_tokens_and_logprobs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    right = tiny_models.save(name, tmp_path)
    engine = ReferenceEngine(*open_model(tmp_path), OPTIONS)
    driver = Driver(engine, logprobs=3, prompt_logprobs=0)
    sequence = driver.sequence(0, PROMPT)
    entries, inits = [], [sequence]
    while len(sequence.outputs) < 12:
        result = driver.run([driver.chunk(sequence, 15)], inits=inits)
        entries += result.prompt_logprobs.get(0, []) + result.logprobs.get(0, [])
        inits = []
    engine.close()
    with torch.inference_mode():
        logits = right(torch.tensor([sequence.tokens]), use_cache=False).logits[0]
        logprobs = logits[:-1].double().log_softmax(-1)
    assert sequence.outputs == logits.argmax(-1)[len(PROMPT) - 1 : -1].tolist()
    assert [entry.token_id for entry in entries] == sequence.tokens[1:]
    for entry, row in zip(entries, logprobs, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
    for entry, row in zip(entries[len(PROMPT) - 1 :], logprobs[len(PROMPT) - 1 :], strict=True):
        assert [token for token, _ in entry.top] == row.topk(3).indices.tolist()


def test_a_step_that_breaks_is_an_error_for_ever_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ReferenceEngine(SPECS["llama"], random_weights(SPECS["llama"]), OPTIONS)
    driver = Driver(engine)
    sequence = driver.sequence(0, PROMPT)
    driver.run([driver.chunk(sequence)], inits=[sequence])

    def broken(*_: object) -> None:
        raise RuntimeError("the device fell off the bus")

    monkeypatch.setattr(ReferenceModel, "layer", broken)
    engine.submit(driver.plan([driver.chunk(sequence)]))
    for _ in range(2):
        with pytest.raises(EngineError, match=r"step 2 failed: RuntimeError: the device fell off the bus"):
            driver.result()
    with pytest.raises(EngineError, match="closed"):
        engine.submit(driver.plan([driver.pending(sequence)]))
    engine.close()


def test_closing_stops_a_step_under_way() -> None:
    engine = ReferenceEngine(SPECS["llama"], random_weights(SPECS["llama"]), OPTIONS)
    driver = Driver(engine)
    sequence = driver.sequence(0, PROMPT)
    engine.submit(driver.plan([driver.chunk(sequence)], inits=[sequence]))
    engine.close()
    assert not engine._worker.is_alive()


def test_the_window_can_be_shortened() -> None:
    options = ReferenceOptions(page_size=4, max_model_len=40)
    engine = ReferenceEngine(SPECS["llama"], random_weights(SPECS["llama"]), options)
    assert engine.info.max_model_len == 40
    assert engine.info.num_pages * 4 >= 16_384
    engine.close()
