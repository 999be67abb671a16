"""Two processes with half a model each, on one card through its own memory, and on two where there are two."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from engine.random_models import random_weights
from engine.rank_process import MODELS, build, command
from engine.step_driver import Driver, Sequence
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.ranks import Followers, form_group
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_memory import ReferenceOptions

pytestmark = pytest.mark.gpu

PROMPTS = [[int(i * 37 + n) % 990 + 3 for i in range(n)] for n in (5, 40, 17, 60, 3)]
NUM_TOKENS = 8
#: A whole start, on a busy machine.
TIMEOUT_S = 100.0
Open = Callable[[str], tuple[CudaEngine, Followers, "Losses"]]


class Losses:
    """What rank 0 was told of the others."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.happened = threading.Event()

    def __call__(self, reason: str, is_user_error: bool) -> None:
        self.reasons.append(reason)
        self.happened.set()


@pytest.fixture(params=[1, 2], ids=["one card", "two cards"])
def open_pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    num_cards = request.param
    if torch.cuda.device_count() < num_cards:
        pytest.skip(f"needs {num_cards} GPUs, there are {torch.cuda.device_count()}")
    tests, source = Path(__file__).parents[1], Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), str(source), os.environ.get("PYTHONPATH", "")]))
    with ExitStack() as closing:

        def start(model: str) -> tuple[CudaEngine, Followers, Losses]:
            losses = Losses()
            followers = Followers(2, command(model, shares_card=num_cards == 1), losses)
            closing.callback(followers.close)
            device = torch.device("cuda", 0)
            ranks = form_group(followers.store, followers.shard, device, fixed_order=False, shares_card=num_cards == 1)
            engine = build(model, device, ranks)
            followers.wait_loaded()
            engine.lead(followers)
            return engine, followers, losses

        yield start


def step_all(driver: Driver, sequences: list[Sequence]) -> None:
    """Prompts one by one, then everybody together, the next step submitted before the last one's tokens are known."""
    for sequence in sequences:
        driver.run([driver.chunk(sequence)], inits=[sequence])
    num_submitted = num_done = 0
    while num_done < NUM_TOKENS:
        while num_submitted < NUM_TOKENS and num_submitted - num_done < driver.engine.info.depth:
            driver.engine.submit(driver.plan([driver.pending(s) for s in sequences]))
            num_submitted += 1
        result = driver.result()
        assert not result.failures, result.failures
        for sequence, token in zip(sequences, result.tokens.tolist(), strict=True):
            sequence.tokens.append(token)
        num_done += 1


@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_are_near_the_reference(open_pair: Open, model: str) -> None:
    """Captured prefill and decode. Both ranks' tokens are compared at every step: one that differs is a loss."""
    engine, _, losses = open_pair(model)
    reference = ReferenceEngine(
        MODELS[model], random_weights(MODELS[model]), ReferenceOptions(num_pages=128, max_slots=8, max_step_tokens=64)
    )
    driver, right = Driver(engine, logprobs=0), Driver(reference, logprobs=0)
    for prompt in PROMPTS:
        both = [d.sequence(0, prompt) for d in (driver, right)]
        inits = True
        for _ in range(NUM_TOKENS):
            results = [
                d.run([d.chunk(s)], inits=[s] if inits else []) for d, s in zip((driver, right), both, strict=True)
            ]
            assert not any(result.failures for result in results), [result.failures for result in results]
            entries = [result.logprobs[0][0] for result in results]
            inits = False
            if entries[0].token_id != entries[1].token_id:
                break  # From here on they say different things.
            # bfloat16 keeps 8 bits; logits of these models reach 10.
            assert entries[0].logprob == pytest.approx(entries[1].logprob, abs=0.15)
        for d, s in zip((driver, right), both, strict=True):
            d.free(s)
    sequences = [driver.sequence(i, prompt) for i, prompt in enumerate(PROMPTS)]
    step_all(driver, sequences)
    alone = []
    for prompt in PROMPTS:
        sequence = driver.sequence(7, prompt)
        step_all(driver, [sequence])
        alone.append(sequence.outputs)
        driver.free(sequence)
    assert [sequence.outputs for sequence in sequences] == alone
    assert not losses.reasons
    engine.close()


def test_a_rank_that_dies_or_hangs_is_named(open_pair: Open) -> None:
    for number, words in ((signal.SIGKILL, "ended (signal SIGKILL)"), (signal.SIGSTOP, "has not answered for")):
        _, followers, losses = open_pair("qwen2")
        followers._processes[0].send_signal(number)
        assert losses.happened.wait(TIMEOUT_S)
        assert losses.reasons[0].startswith("rank 1 of 2 ") and words in losses.reasons[0]
        followers.close()
