"""Whatever is added, cancelled, interrupted and preempted, in any order: scripts are told to the letter, no leak.

The scripted engine keeps a model of KV memory and refuses any plan whose pages do not hold the slot's own history.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.stepping import Bench, make_request
from twinpath.engine.scripted import END_ID, Script
from twinpath.scheduler import Coefficients, CostModel, LaneSettings
from twinpath.types import FinishEvent, FinishReason, TokensEvent

ANSWERS = {f"<{n}>": bytes(range(40 + n, 40 + n + 7 * n)) for n in range(6)}
PREFIXES = ["", "shared system prompt", "shared system prompt, and more of the same", "another"]


class SchedulerMachine(RuleBasedStateMachine):
    """A small pool and few slots, so that preemption and eviction are common."""

    depth = 1
    chunks: tuple[int, ...] = (1,)
    step_tokens = 12
    lanes: LaneSettings | None = None
    cost = Coefficients(0.1, 1.0, 0.1, 0.1, 0.1, 0.0, 0.0, 0.1)
    policy = "fcfs"

    def __init__(self) -> None:
        super().__init__()
        scripts = [Script(match=name, bytes_hex=text.hex(), chunks=self.chunks) for name, text in ANSWERS.items()]
        self.bench = Bench(
            *scripts,
            depth=self.depth,
            page_size=4,
            num_pages=24,
            max_model_len=80,
            max_slots=5,
            max_num_seqs=4,
            step_tokens=self.step_tokens,
            lanes=self.lanes,
            cost=CostModel(self.cost),
            policy=self.policy,
        )
        self.expected: dict[str, list[int]] = {}
        self.cancelled: set[str] = set()

    @rule(
        prefix=st.sampled_from(PREFIXES),
        name=st.sampled_from(sorted(ANSWERS)),
        max_tokens=st.integers(1, 50),
        salt=st.sampled_from(["", "tenant"]),
    )
    def add(self, prefix: str, name: str, max_tokens: int, salt: str) -> None:
        request = make_request(f"r{len(self.expected)}", prefix + name, max_tokens, cache_salt=salt)
        room = self.bench.scheduler.window_tokens - len(request.prompt_ids)
        self.expected[request.request_id] = [*ANSWERS[name], END_ID][: min(max_tokens, room)]
        self.bench.add(request)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.expected)))
        self.bench.cancel(request_id)
        self.cancelled.add(request_id)

    @precondition(lambda self: self.bench.scheduler.num_outstanding < self.depth)
    @rule()
    def submit(self) -> None:
        self.bench.submit()

    @precondition(lambda self: self.bench.scheduler.num_outstanding)
    @rule()
    def collect(self) -> None:
        self.bench.collect()

    @precondition(lambda self: self.bench.scheduler.num_outstanding)
    @rule()
    def interrupt(self) -> None:
        self.bench.engine.interrupt(self.bench.engine.plans[-1].step_id)

    @rule(passed_s=st.sampled_from([0.001, 1.0, 200.0]))
    def wait(self, passed_s: float) -> None:
        self.bench.now_s += passed_s

    @rule(num_turns=st.integers(1, 12))
    def turns(self, num_turns: int) -> None:
        for _ in range(num_turns):
            self.bench.turn()

    @invariant()
    def tokens_so_far_are_the_scripts(self) -> None:
        for request_id, expected in self.expected.items():
            tokens = self.bench.tokens(request_id)
            assert tokens == expected[: len(tokens)]

    def teardown(self) -> None:
        self.bench.run()
        for request_id, expected in self.expected.items():
            finish = self.bench.finish(request_id)
            tokens = self.bench.tokens(request_id)
            if finish.reason is FinishReason.ABORT:
                assert request_id in self.cancelled
            else:
                assert tokens == expected
                assert finish.reason is (FinishReason.STOP if expected[-1] == END_ID else FinishReason.LENGTH)
            assert finish.usage.completion_tokens == len(tokens)
        scheduler = self.bench.scheduler
        assert scheduler.num_running == scheduler.num_waiting == scheduler.pool.num_used == 0
        scheduler.check_integrity()


class DeepMachine(SchedulerMachine):
    depth = 3


class ChunkMachine(SchedulerMachine):
    chunks = (1, 12, 2)


class SliceMachine(SchedulerMachine):
    """A few rows cost as much as many: prefill goes in slices."""

    step_tokens = 48
    lanes = LaneSettings(flex_threshold_tokens=24, itl_budget=2.5, idle_step_ms=4.0)
    cost = Coefficients(0.05, 0.5, 0.1, 1.0, 0.01, 1e-4, 1e-4, 0.1, knee_rows=8)
    policy = "twinpath"


class DeepSliceMachine(SliceMachine):
    depth = 3


class MixMachine(SliceMachine):
    """Weights are dear, rows cheap, a plan has its price: prefill rows ride with decode rows."""

    depth = 3
    cost = Coefficients(1.0, 5.0, 0.1, 0.1, 0.1, 0.0, 0.0, 0.1)
    policy = "edf"


class CrampedMachine(SliceMachine):
    """Nothing ever fits the budget: the least of a period is what moves prefill on."""

    depth = 3
    chunks = (1,)
    lanes = LaneSettings(flex_threshold_tokens=24, itl_budget=1.0, idle_step_ms=0.1)
    policy = "base"


TestSlices = SliceMachine.TestCase
TestSlicesAtDepthThree = DeepSliceMachine.TestCase
TestMixedRows = MixMachine.TestCase
TestCramped = CrampedMachine.TestCase
TestDepthOne = SchedulerMachine.TestCase
TestDepthThree = DeepMachine.TestCase
TestSeveralTokensPerStep = ChunkMachine.TestCase
LANE_CASES = (TestSlices, TestSlicesAtDepthThree, TestMixedRows, TestCramped)
for case in (TestDepthOne, TestDepthThree, TestSeveralTokensPerStep, *LANE_CASES):
    case.settings = settings(max_examples=30, stateful_step_count=50, deadline=None)
del case


@pytest.mark.parametrize("depth", [1, 3])
def test_pressure_preempts_and_changes_no_answer(depth: int) -> None:
    """Eight requests that need 8 x 12 pages together, in a pool of 24."""
    scripts = [Script(match=f"<{n}>", bytes_hex=bytes([60 + n] * 38).hex()) for n in range(8)]
    bench = Bench(*scripts, depth=depth, page_size=4, num_pages=24, max_model_len=80, max_slots=8, step_tokens=32)
    bench.add(*(make_request(f"r{n}", f"<{n}>prompt", 38) for n in range(8)))
    bench.run()
    assert bench.scheduler.num_preemptions > 0
    for n in range(8):
        assert bench.tokens(f"r{n}") == [60 + n] * 38
        assert isinstance(bench.end(f"r{n}"), FinishEvent)
    firsts = [next(e for e in bench.told[f"r{n}"] if isinstance(e, TokensEvent)) for n in range(8)]
    assert all(event.cached_tokens == 0 for event in firsts)  # A resumed request's own pages are no prefix hit.
    assert bench.scheduler.pool.num_used == 0
