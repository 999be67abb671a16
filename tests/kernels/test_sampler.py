"""The device sampler against `twinpath.sampling`: the same token for every setting, always."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernels.emulated_sampler import EmulatedSampler, compiler
from twinpath.errors import EngineError
from twinpath.kernels.cluster_sampler.kernel import ClusterShape, Sampler, build_sampler
from twinpath.kernels.sampler import launch, reference
from twinpath.kernels.sampler.launch import sample_rows
from twinpath.kernels.sampler.slots import fill_tables
from twinpath.kernels.sampler.spec import FAILURES, SlotState, Workspace, entry_of, settings
from twinpath.sampling import sample, token_logprob
from twinpath.types import Float32s, SamplingParams, TokenLogprob

NUM_SLOTS = 12
LONGEST = 40
#: A sampler for a vocabulary.
SamplerFor = Callable[[int], Sampler]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> SamplerFor:
    """On a card without clusters, or without a compiler here, the test is skipped."""
    built: dict[int, Sampler] = {}

    def build(vocab_size: int) -> Sampler:
        if torch.cuda.is_available():
            sampler = build_sampler(vocab_size, torch.device("cuda"))
            return sampler or pytest.skip("this card has no clusters")
        if compiler() is None:
            pytest.skip("no C++ compiler")
        return EmulatedSampler(ClusterShape(vocab_size, cluster=4, threads=128), tmp_path_factory.mktemp("cluster"))

    return lambda vocab_size: built.get(vocab_size) or built.setdefault(vocab_size, build(vocab_size))


@pytest.fixture(params=["triton", "plain", "cluster"])
def sampler_for(request: pytest.FixtureRequest, cluster: SamplerFor) -> SamplerFor:
    fixed: dict[str, Sampler] = {"triton": sample_rows, "plain": reference.sample_rows}
    return (lambda vocab_size: fixed[request.param]) if request.param in fixed else cluster


class Case:
    """A row: logits, settings, what was said before."""

    def __init__(self, rng: np.random.Generator, vocab_size: int, logits: Float32s, **setting: object) -> None:
        self.logits = logits.astype(np.float32)
        self.params = SamplingParams(max_tokens=9, seed=int(rng.integers(0, 2**63)), **setting)  # type: ignore[arg-type]
        self.num_prompt = int(rng.integers(1, 20))
        length = self.num_prompt + int(rng.integers(0, 18))
        self.history = rng.integers(-1, vocab_size + 1, length).astype(np.int32)

    def right(self) -> tuple[int, str | None]:
        try:
            return sample(self.logits, self.params, self.history, self.num_prompt, len(self.history))[0], None
        except EngineError as error:
            return 0, str(error)


def run(cases: list[Case], device: torch.device, sampler_for: SamplerFor) -> list[tuple[int, str | None]]:
    """All cases as rows of one call, in slots of another order, one row left out."""
    vocab_size = len(cases[0].logits)
    state = SlotState.allocate(NUM_SLOTS, vocab_size, LONGEST, device)
    work = Workspace.allocate(len(cases) + 1, vocab_size, device)
    slots = np.random.default_rng(1).permutation(NUM_SLOTS)[: len(cases)].tolist()
    for case, slot in zip(cases, slots, strict=True):
        floats, ints = settings(case.params, case.num_prompt)
        state.floats[slot] = torch.from_numpy(floats).to(device)
        state.ints[slot] = torch.from_numpy(ints).to(device)
        fill_tables(state, slot, case.params, case.history, case.num_prompt)
    rows = [*cases[:1], None, *cases[1:]]
    logits = np.stack([case.logits if case else np.full(vocab_size, np.nan, np.float32) for case in rows])
    row_slots = [slots[0], -1, *slots[1:]]
    positions = [len(case.history) if case else 0 for case in rows]
    for _ in range(2):  # The second call finds what the first left in the workspace.
        for case, slot in zip(cases, slots, strict=True):
            fill_tables(state, slot, case.params, case.history, case.num_prompt)
        sampler_for(vocab_size)(
            torch.from_numpy(logits).to(device),
            torch.tensor(row_slots, dtype=torch.int32, device=device),
            torch.tensor(positions, dtype=torch.int32, device=device),
            torch.full((len(rows),), -1, dtype=torch.int32, device=device),
            state,
            work,
            num_rows=len(rows),
            greedy=all(case.params.temperature == 0 for case in cases),
        )
    got = []
    for row, slot in enumerate(row_slots):
        if slot >= 0:
            token, code = int(work.tokens[row]), int(work.codes[row])
            assert int(state.history[slot, positions[row]]) == token
            got.append((token, FAILURES.get(code)))
    return got


def gaussian(rng: np.random.Generator, vocab_size: int, scale: float = 3.0) -> Float32s:
    return (scale * rng.standard_normal(vocab_size)).astype(np.float32)


SETTINGS: dict[str, dict[str, object]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "top_k some": {"top_k": 120},
    "cold": {"temperature": 0.05},
    "hot": {"temperature": 30.0, "top_p": 0.5},
    "top_k": {"top_k": 7},
    "top_k many": {"top_k": 400, "top_p": 0.99},
    "top_k beyond": {"top_k": 5000},
    "top_p": {"top_p": 0.9},
    "top_p all": {"top_p": 0.9999999},
    "top_p one": {"top_p": 1e-9},
    "min_p": {"min_p": 0.05},
    "top_k and top_p": {"top_k": 40, "top_p": 0.8},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "everything": {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 0.8,
        "presence_penalty": -0.4,
        "frequency_penalty": 0.2,
        "logit_bias": {3: 5.0, 9: -math.inf, 11: 1e39, 200_000: 4.0},
        "min_tokens": 60,
        "stop_token_ids": (1, 2, 11),
    },
}


@pytest.mark.parametrize("vocab_size", [160, 4999])
def test_every_setting_draws_what_the_definition_draws(
    vocab_size: int, sampler_for: SamplerFor, device: torch.device
) -> None:
    rng = np.random.default_rng(vocab_size)
    for _ in range(2 if vocab_size == 160 else 1):
        cases = [Case(rng, vocab_size, gaussian(rng, vocab_size), **setting) for setting in list(SETTINGS.values())]
        for first in range(0, len(cases), 5):
            group = cases[first : first + 5]
            assert run(group, device, sampler_for) == [case.right() for case in group]


@pytest.mark.parametrize(
    "setting", [{"top_k": 5}, {"top_k": 300}, {"top_p": 0.5}, {"top_k": 700, "top_p": 0.7}, {}], ids=str
)
def test_equal_logits_are_cut_by_id(setting: dict[str, object], sampler_for: SamplerFor, device: torch.device) -> None:
    """More ids at the border than are compared pairwise: all alike, and in a few heaps."""
    rng = np.random.default_rng(2)
    heaps = rng.integers(0, 3, 1500).astype(np.float32)
    cases = [Case(rng, 1500, logits, **setting) for logits in (np.zeros(1500, np.float32), heaps, -heaps)]
    assert run(cases, device, sampler_for) == [case.right() for case in cases]


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_log_probabilities_are_those_of_raw_logits(
    temperature: float, sampler_for: SamplerFor, device: torch.device
) -> None:
    """Of no place to all, with settings that change logits, impossible ids, more equal ids than fit a list."""
    vocab_size, rng = 1500, np.random.default_rng(7)
    rows = np.stack([gaussian(rng, vocab_size) for _ in range(5)])
    rows[1, :1490] = -np.inf
    rows[2] = 1.5
    rows[3, 7] = -0.0
    asked = [20, 20, 20, 3, 0]
    params = [SamplingParams(max_tokens=1, temperature=temperature, logit_bias={5: 9.0}, logprobs=n) for n in asked]
    state, work = SlotState.allocate(6, vocab_size, LONGEST, device), Workspace.allocate(6, vocab_size, device)
    empty = np.zeros(0, np.int32)
    for slot, one in enumerate([*params, SamplingParams(max_tokens=1, temperature=temperature)]):
        floats, ints = settings(one, 1)
        state.floats[slot], state.ints[slot] = torch.from_numpy(floats).to(device), torch.from_numpy(ints).to(device)
        fill_tables(state, slot, one, empty, 1)
    slots = torch.arange(6, dtype=torch.int32, device=device)
    logits = torch.from_numpy(np.concatenate((rows, rows[:1]))).to(device)
    work.scores[5] = 77.0
    sampler_for(vocab_size)(logits, slots, slots * 0 + 1, slots * 0 - 1, state, work, num_rows=6)
    for row, num_top in enumerate(asked):
        token, right = sample(rows[row], params[row], empty, 1, 1)
        assert int(work.tokens[row]) == token
        assert right is not None
        assert_same_entry(entry_of(work.scores[row].cpu().numpy(), token, num_top), right)
    assert (work.scores[5] == 77.0).all()


def assert_same_entry(got: TokenLogprob, right: TokenLogprob) -> None:
    assert got.token_id == right.token_id and [i for i, _ in got.top] == [i for i, _ in right.top]
    values = [entry.logprob for entry in (got, right)]
    assert values[0] == pytest.approx(values[1], abs=2e-6)
    assert [v for _, v in got.top] == pytest.approx([v for _, v in right.top], abs=2e-6)


@pytest.mark.parametrize("score_rows", [launch.score_rows, reference.score_rows], ids=["triton", "plain"])
def test_known_tokens_are_scored(score_rows: Sampler, device: torch.device) -> None:
    vocab_size, rng = 4999, np.random.default_rng(8)
    rows = np.stack([gaussian(rng, vocab_size) for _ in range(5)])
    rows[1, 9] = np.nan
    rows[2, 9] = np.inf
    rows[3] = -np.inf
    state, work = SlotState.allocate(1, vocab_size, LONGEST, device), Workspace.allocate(5, vocab_size, device)
    tokens = torch.tensor([17, 17, 17, 17, 4998], dtype=torch.int32, device=device)
    slots = torch.tensor([0, 0, 0, 0, 0], dtype=torch.int32, device=device)
    score_rows(torch.from_numpy(rows).to(device), slots, tokens, state, work, num_rows=5, num_top=4)
    scores = work.scores.cpu().numpy()
    for row, token in ((0, 17), (4, 4998)):
        assert_same_entry(entry_of(scores[row], token, 4), token_logprob(rows[row], token, 4))
    for row in (1, 2, 3):
        with pytest.raises(EngineError) as failure:
            token_logprob(rows[row], 17, 4)
        with pytest.raises(EngineError, match=str(failure.value)):
            entry_of(scores[row], 17, 4)


def test_bad_rows_fail_alone(sampler_for: SamplerFor, device: torch.device) -> None:
    rng = np.random.default_rng(3)
    rows = [gaussian(rng, 160) for _ in range(6)]
    rows[0][159] = np.nan
    rows[1][5] = np.inf
    rows[2][:] = -np.inf
    rows[3][1:] = -np.inf
    rows[4][0] = -np.inf
    cases = [Case(rng, 160, row) for row in rows]
    cases[3] = Case(rng, 160, rows[3], min_tokens=99, stop_token_ids=(0,))
    got = run(cases, device, sampler_for)
    assert got == [case.right() for case in cases]
    assert [reason is None for _, reason in got] == [False] * 4 + [True] * 2


def test_a_mask_leaves_only_its_ids(sampler_for: SamplerFor, device: torch.device) -> None:
    """And replaces min_tokens: 7 is a stop id that the mask allows."""
    vocab_size = 160
    state = SlotState.allocate(1, vocab_size, LONGEST, device)
    work = Workspace.allocate(2, vocab_size, device)
    params = SamplingParams(max_tokens=1, temperature=2.0, seed=5, min_tokens=50, stop_token_ids=(7,))
    floats, ints = settings(params, 1)
    state.floats[0], state.ints[0] = torch.from_numpy(floats).to(device), torch.from_numpy(ints).to(device)
    fill_tables(state, 0, params, np.zeros(0, np.int32), 1)
    allowed = {7, 31, 32, 159}
    mask = np.array([sum(1 << i % 32 for i in allowed if i // 32 == word) for word in range(5)], np.uint32)
    work.allowed[1] = torch.from_numpy(mask.view(np.int32)).to(device)
    logits = gaussian(np.random.default_rng(4), vocab_size)
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    seen = set()
    for position in range(1, 30):
        rows = torch.from_numpy(logits).to(device)[None]
        sampler_for(vocab_size)(rows, slots, slots + position, slots + 1, state, work, num_rows=1)
        right, _ = sample(logits, params, np.zeros(0, np.int32), 1, position, mask.view(np.int32))
        assert int(work.tokens[0]) == right
        seen.add(right)
    assert 7 in seen and seen <= allowed


def test_tokens_drawn_count_for_the_next(sampler_for: SamplerFor, device: torch.device) -> None:
    """Step by step, the device keeping history and counts: as the definition with a history kept by hand."""
    vocab_size, rng = 160, np.random.default_rng(6)
    params = SamplingParams(max_tokens=20, temperature=0.7, seed=9, frequency_penalty=1.5, repetition_penalty=1.2)
    history = rng.integers(0, vocab_size, 5).astype(np.int32)
    state = SlotState.allocate(3, vocab_size, LONGEST, device)
    work = Workspace.allocate(1, vocab_size, device)
    floats, ints = settings(params, 5)
    state.floats[2], state.ints[2] = torch.from_numpy(floats).to(device), torch.from_numpy(ints).to(device)
    fill_tables(state, 2, params, history, 5)
    slots = torch.full((1,), 2, dtype=torch.int32, device=device)
    for position in range(5, 17):
        logits = gaussian(rng, vocab_size, 1.0)
        sampler_for(vocab_size)(
            torch.from_numpy(logits).to(device)[None],
            slots,
            slots * 0 + position,
            slots * 0 - 1,
            state,
            work,
            num_rows=1,
        )
        right, _ = sample(logits, params, history, 5, position)
        assert int(work.tokens[0]) == right
        history = np.append(history, np.int32(right))
    assert state.history[2, 5:17].tolist() == history[5:].tolist()
