"""An engine whose model two ranks share, as threads: rank 0 is driven, the other follows what it is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from engine.engines import POISON, PROMPTS, SAMPLED, alone, driver_of, poisoned_model
from engine.random_models import VOCAB_SIZE
from engine.step_driver import Driver, tokens_of
from twinpath.engine.cuda.collectives import Collective, LibraryCollective
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.follower import follow
from twinpath.engine.cuda.leader import LeadingLauncher
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.rank_messages import Finish, RankChannel, RankClosed
from twinpath.engine.cuda.shards import WHOLE, Shard
from twinpath.engine.cuda.weights import pack_weights
from twinpath.errors import EngineError
from twinpath.types import StepPlan, TokenMasks

CPU = torch.device("cpu")
TIMEOUT_S = 60.0
OPTIONS = CudaOptions(
    device="cpu", kernels="plain", graphs=False, page_size=16, num_pages=48, max_slots=6, max_step_tokens=128, depth=3
)


@dataclass
class Ranks:
    """What an engine needs of its group; nobody has to agree on anything here."""

    collective: Collective

    def least(self, name: str, value: int) -> int:
        return value


def build(ranks: Ranks | None) -> CudaEngine:
    spec, weights = poisoned_model()
    shard = WHOLE if ranks is None else ranks.collective.shard
    packed = pack_weights(spec, weights, CPU, torch.float32, spec.max_position, shard=shard)
    return CudaEngine(packed, OPTIONS, ranks=ranks)  # type: ignore[arg-type]


@dataclass
class Pair:
    """Rank 0's engine, its channel, and what became of rank 1."""

    engine: CudaEngine
    channel: RankChannel
    ended: list[Exception]
    thread: threading.Thread

    def close(self) -> Exception:
        self.engine.close()
        self.channel.close()
        self.thread.join(TIMEOUT_S)
        return self.ended[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    store = HashStore()
    ours, theirs = (RankChannel(end) for end in socket.socketpair())
    ended: list[Exception] = []

    def rank(number: int) -> CudaEngine:
        group = ProcessGroupGloo(PrefixStore("gloo", store), number, 2, timedelta(seconds=TIMEOUT_S))
        return build(Ranks(LibraryCollective(group, Shard(number, 2), fixed_order=True)))

    def run() -> None:
        try:
            follow(theirs, rank(1).launcher)
        except Exception as error:
            ended.append(error)
        finally:
            theirs.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    engine = rank(0)
    engine.launcher = LeadingLauncher(engine.launcher, [ours])
    pair = Pair(engine, ours, ended, thread)
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def whole() -> CudaEngine:
    return build(None)


def test_two_ranks_say_what_one_card_says(pair: Pair, whole: CudaEngine) -> None:
    """Prompts in pieces and whole, greedy and with every setting, a slot that is used again."""
    for prompt in PROMPTS.values():
        for settings in ({}, SAMPLED):
            right = alone(driver_of(whole), prompt, 6, **settings)
            assert alone(driver_of(pair.engine), prompt, 6, **settings) == right
    driver = driver_of(pair.engine)
    assert driver.generate(driver.sequence(2, PROMPTS[0]), 4, chunk_tokens=11) == alone(driver_of(whole), PROMPTS[0], 4)
    assert isinstance(pair.close(), RankClosed)


def test_tokens_go_on_without_the_host(pair: Pair, whole: CudaEngine) -> None:
    """Steps submitted before the last one's token is known read it on the rank that runs them."""
    right = alone(driver_of(whole), PROMPTS[2], 4)
    driver = driver_of(pair.engine)
    sequence = driver.sequence(1, PROMPTS[2])
    driver.engine.submit(driver.plan([driver.chunk(sequence)], inits=[sequence]))
    for _ in range(2):
        driver.engine.submit(driver.plan([driver.pending(sequence)]))
    said = [int(driver.result().tokens[0]) for _ in range(3)]
    driver.engine.submit(driver.plan([driver.pending(sequence)]))
    assert [*said, int(driver.result().tokens[0])] == right


def test_slices_masks_and_interrupts_are_followed(pair: Pair, whole: CudaEngine) -> None:
    """A chunk layer by layer beside a decode step; a plan that is left and planned again; a mask filled late."""
    right = alone(driver_of(whole), PROMPTS[0], 3)
    driver = driver_of(pair.engine)
    sequence = driver.sequence(3, PROMPTS[0])
    residual = np.zeros((len(PROMPTS[0]), driver.engine.info.hidden_size), np.float32)
    segment = driver.chunk(sequence)
    for layer in range(driver.engine.info.num_layers):
        inits = [sequence] if layer == 0 else []
        result = driver.run([segment], inits=inits, layers=(layer, layer + 1), residual=residual)
    left = driver.plan([driver.pending(sequence)])
    driver.engine.submit(left)
    driver.engine.interrupt(left.step_id)
    assert driver.result().interrupted
    assert tokens_of(result) == [[right[0]]]
    sequence.num_computed -= 1
    assert driver.generate(sequence, 3) == right
    assert masked_token(driver, 77) == 77


def masked_token(driver: Driver, allowed: int) -> int:
    sequence = driver.sequence(0, PROMPTS[1])
    plan = driver.plan([driver.chunk(sequence)], inits=[sequence])
    words = np.zeros((1, -(-VOCAB_SIZE // 32)), np.int32)
    masks = TokenMasks(np.array([0], np.int32), words)
    fields = {name: getattr(plan, name) for name in StepPlan.__dataclass_fields__} | {"masks": masks}
    driver.engine.submit(StepPlan(**fields))
    words[0, allowed // 32] = 1 << (allowed % 32)
    masks.ready.set()
    return int(driver.result().tokens[0])


def test_a_request_that_fails_and_a_scored_prompt(pair: Pair, whole: CudaEngine) -> None:
    """Every rank sees for itself that a row has no logits, and scores prompts over all of the vocabulary."""
    driver = driver_of(pair.engine)
    bad = driver.sequence(4, [5, POISON, 9])
    result = driver.run([driver.chunk(bad)], inits=[bad])
    assert list(result.failures) == [0]
    after = driver.plan([driver.pending(bad)])
    driver.engine.submit(after)
    assert list(driver.result().failures) == [0]
    scored = []
    for engine in (pair.engine, whole):
        driver = Driver(engine, logit_bias={POISON: -1000.0}, logprobs=2, prompt_logprobs=2)
        sequence = driver.sequence(1, PROMPTS[1])
        result = driver.run([driver.chunk(sequence)], inits=[sequence])
        scored.append([*result.prompt_logprobs[0], *result.logprobs[0]])
    for got, right in zip(*scored, strict=True):
        assert got.token_id == right.token_id and got.logprob == pytest.approx(right.logprob, abs=1e-3)
    assert isinstance(pair.close(), RankClosed)


def test_ranks_that_disagree_end(pair: Pair) -> None:
    driver = driver_of(pair.engine)
    sequence = driver.sequence(0, PROMPTS[1])
    plan = driver.plan([driver.chunk(sequence)], inits=[sequence])
    driver.engine.submit(plan)
    token = int(driver.result().tokens[0])
    pair.channel.send(Finish(plan.step_id, {0: token + 1}))
    pair.thread.join(TIMEOUT_S)
    assert isinstance(pair.ended[0], EngineError)
    assert str(pair.ended[0]) == f"step {plan.step_id} gave {{0: {token}}} here and {{0: {token + 1}}} on rank 0"


def test_a_rank_that_is_gone_fails_the_engine(pair: Pair) -> None:
    driver = driver_of(pair.engine)
    sequence = driver.sequence(0, PROMPTS[1])
    pair.channel.close()
    driver.engine.submit(driver.plan([driver.chunk(sequence)], inits=[sequence]))
    with pytest.raises(EngineError, match="another rank of the model is gone"):
        driver.result()
