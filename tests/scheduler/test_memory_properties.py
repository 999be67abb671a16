"""Sessions, templates, tenants, lanes and too little memory, in any order: scripts are told to the letter, every page
is somebody's, and nobody gets what another tenant computed.

The scripted engine keeps a model of KV memory and refuses any plan whose pages do not hold the slot's own history.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.stepping import Bench, make_request
from twinpath.engine.scripted import END_ID, Script
from twinpath.ipc.messages import Answer, EndSession, ListSessions, PinnedPrompt, PinTemplate, UnpinTemplate
from twinpath.scheduler import Coefficients, CostModel, LaneSettings, MemorySettings
from twinpath.scheduler.holdings import Holdings
from twinpath.scheduler.sequence import Lane, Sequence
from twinpath.types import ErrorEvent, Event, FinishReason, Int32s

ANSWERS = {f"<{n}>": bytes(range(40 + n, 40 + n + 7 * n)) for n in range(6)}
BEGINNINGS = ["", "a system prompt", "a system prompt, and a list of tools that is longer", "quite another one"]
TENANTS = ["", "one", "two"]
NAMES = ["s", "t"]
TTL_S = 10.0
NUM_PAGES = 28
SHARED = "shared template"


class World:
    """A scheduler with everything on, and what must be true of it at any time."""

    def __init__(self, depth: int, lanes: LaneSettings | None, chunks: tuple[int, ...] = (1,)) -> None:
        scripts = [Script(match=name, bytes_hex=text.hex(), chunks=chunks) for name, text in ANSWERS.items()]
        self.bench = Bench(
            *scripts,
            depth=depth,
            page_size=4,
            num_pages=NUM_PAGES,
            max_model_len=88,
            max_slots=5,
            max_num_seqs=4,
            step_tokens=24,
            lanes=lanes,
            cost=CostModel(Coefficients(0.05, 0.5, 0.1, 1.0, 0.01, 1e-4, 1e-4, 0.1, knee_rows=8)),
            policy="twinpath" if lanes else "fcfs",
            memory=MemorySettings(session_ttl_s=TTL_S, max_pinned_share=0.4),
        )
        self.memory = self.bench.scheduler.memory
        self.holdings = Holdings(self.bench.scheduler)
        self.bench.on_events = self._sift
        self.expected: dict[str, list[int]] = {}
        self.cancelled: set[str] = set()
        #: Page -> the namespace of whoever wrote it last.
        self.writer: dict[int, str] = {}
        self.answers: list[Answer] = []
        self.num_calls = 0
        self.num_fast_preemptions = 0
        self._watch_pages()

    def _watch_pages(self) -> None:
        """Note who writes a page, and look at whoever starts with one that is written already."""
        residency = self.memory.residency
        append, bind = residency.append, residency.bind

        def watched_append(sequence: Sequence, pages: list[int]) -> None:
            self.writer.update(dict.fromkeys(pages, sequence.salt))
            append(sequence, pages)

        def watched_bind(sequence: Sequence, cached: Int32s) -> None:
            writers = {self.writer[page] for page in cached.tolist()}
            assert writers <= {sequence.salt, SHARED}, "a page crossed tenants"
            bind(sequence, cached)

        residency.append, residency.bind = watched_append, watched_bind  # type: ignore[method-assign]

    def _sift(self, events: list[Event]) -> list[Event]:
        events, answers = self.holdings.sift(events)
        self.answers += answers
        return events

    def add(self, beginning: str, name: str, max_tokens: int, tenant: str, session: str) -> None:
        request = make_request(
            f"r{len(self.expected)}",
            beginning + name,
            max_tokens,
            cache_salt=tenant,
            tenant=tenant,
            session=session and f"{tenant}/{session}",
            session_name=session,
        )
        # Templates that the prompt does not start with take from its window.
        room = self.memory.window_tokens(request, self.bench.scheduler.window_tokens) - len(request.prompt_ids)
        self.expected[request.request_id] = [*ANSWERS[name], END_ID][: max(min(max_tokens, room), 0)]
        self.bench.add(request)

    def cancel(self, request_id: str) -> None:
        self.bench.cancel(request_id)
        self.cancelled.add(request_id)

    def call(self, make: type, *fields: object) -> None:
        self.num_calls += 1
        self.answers += self.holdings.handle(make(self.num_calls, *fields))
        self.bench.scheduler.check_integrity()

    def pin(self, beginning: str, tenant: str, shared: bool) -> None:
        self.call(PinTemplate, PinnedPrompt(beginning, list(beginning.encode()), tenant, shared))

    def turn(self) -> bool:
        went_on = self.bench.turn()
        self.check()
        return went_on

    def check(self) -> None:
        """After every step."""
        scheduler = self.bench.scheduler
        counts = scheduler.pool.counts()
        assert sum((counts.pinned, counts.running, counts.session, counts.prefix, counts.free)) == NUM_PAGES
        assert counts.pinned <= 0.4 * NUM_PAGES
        if any(sequence.lane is Lane.FLEX for sequence in scheduler.roster.running):
            assert self.memory.num_fast_preemptions == self.num_fast_preemptions, "FAST gave way before FLEX"
        self.num_fast_preemptions = self.memory.num_fast_preemptions
        for request_id in scheduler.roster.sequences.keys() & self.expected.keys():
            tokens = self.bench.tokens(request_id)
            assert tokens == self.expected[request_id][: len(tokens)]

    def finish(self) -> None:
        """Everybody ends; then only templates, live sessions and prefixes are left, and with time and will nothing."""
        self.bench.run()
        self.check()
        for request_id, expected in self.expected.items():
            end, tokens = self.bench.end(request_id), self.bench.tokens(request_id)
            if isinstance(end, ErrorEvent):
                assert end.code == "context_length_exceeded" and not expected, end
            elif end.reason is FinishReason.ABORT:
                assert request_id in self.cancelled
            else:
                assert tokens == expected
        scheduler = self.bench.scheduler
        assert scheduler.num_running == scheduler.num_waiting == scheduler.pool.num_used == 0
        assert self.holdings.num_pending == 0
        assert {answer.call_id for answer in self.answers} == set(range(1, self.num_calls + 1)), "a call is unanswered"
        for template in self.memory.templates.all():
            self.memory.remove_template(template.name)
        self.bench.now_s += TTL_S
        self.memory.expire_sessions()
        assert len(self.memory.sessions) == self.memory.pool.num_pinned == self.memory.pool.num_kept == 0
        self.memory.forget_prefixes()
        assert scheduler.pool.num_free == NUM_PAGES
        scheduler.check_integrity()


LANES = LaneSettings(flex_threshold_tokens=24, itl_budget=2.5, idle_step_ms=4.0)


class MemoryMachine(RuleBasedStateMachine):
    depth = 1
    lanes: LaneSettings | None = None

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.depth, self.lanes)

    @rule(
        beginning=st.sampled_from(BEGINNINGS),
        name=st.sampled_from(sorted(ANSWERS)),
        max_tokens=st.integers(1, 40),
        tenant=st.sampled_from(TENANTS),
        session=st.sampled_from(["", *NAMES]),
    )
    def add(self, beginning: str, name: str, max_tokens: int, tenant: str, session: str) -> None:
        self.world.add(beginning, name, max_tokens, tenant, session)

    @precondition(lambda self: self.world.expected)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.expected))))

    @rule(beginning=st.sampled_from(BEGINNINGS), tenant=st.sampled_from(TENANTS), shared=st.booleans())
    def pin(self, beginning: str, tenant: str, shared: bool) -> None:
        self.world.pin(beginning, tenant, shared)

    @rule(beginning=st.sampled_from(BEGINNINGS))
    def unpin(self, beginning: str) -> None:
        self.world.call(UnpinTemplate, beginning)

    @rule(tenant=st.sampled_from(TENANTS), name=st.sampled_from(NAMES))
    def end_session(self, tenant: str, name: str) -> None:
        self.world.call(EndSession, f"{tenant}/{name}")

    @rule(tenant=st.sampled_from(TENANTS))
    def list_sessions(self, tenant: str) -> None:
        self.world.call(ListSessions, tenant)
        cards = self.world.answers[-1].sessions
        assert {card.name for card in cards} <= set(NAMES) and len(cards) <= len(NAMES)

    @rule(passed_s=st.sampled_from([0.001, 1.0, 0.6 * TTL_S, 200.0]))
    def wait(self, passed_s: float) -> None:
        self.world.bench.now_s += passed_s

    @precondition(lambda self: self.world.bench.scheduler.num_outstanding < self.depth)
    @rule()
    def submit(self) -> None:
        self.world.bench.submit()

    @precondition(lambda self: self.world.bench.scheduler.num_outstanding)
    @rule()
    def interrupt(self) -> None:
        self.world.bench.engine.interrupt(self.world.bench.engine.plans[-1].step_id)

    @rule(num_turns=st.integers(1, 12))
    def turns(self, num_turns: int) -> None:
        for _ in range(num_turns):
            self.world.turn()

    @invariant()
    def all_is_well(self) -> None:
        self.world.check()
        self.world.bench.scheduler.check_integrity()

    def teardown(self) -> None:
        self.world.finish()


class DeepMachine(MemoryMachine):
    depth = 3


class LaneMachine(MemoryMachine):
    lanes = LANES


class DeepLaneMachine(LaneMachine):
    depth = 3


TestMemory = MemoryMachine.TestCase
TestMemoryAtDepthThree = DeepMachine.TestCase
TestMemoryWithLanes = LaneMachine.TestCase
TestMemoryWithLanesAtDepthThree = DeepLaneMachine.TestCase
for case in (TestMemory, TestMemoryAtDepthThree, TestMemoryWithLanes, TestMemoryWithLanesAtDepthThree):
    case.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
del case


def wander(world: World, num_steps: int, seed: int) -> None:
    """Random acts, the seed's; most of them steps."""
    rng = random.Random(seed)
    acts = {
        "turn": 60, "add": 14, "cancel": 3, "pin": 1, "unpin": 1, "end_session": 1, "wait": 4, "interrupt": 2
    }  # fmt: skip
    taken = 0
    while taken < num_steps:
        act = rng.choices(list(acts), list(acts.values()))[0]
        if act == "turn":
            taken += world.turn()
        elif act == "add" and world.bench.scheduler.num_waiting < 6:
            session = rng.choice(["", *NAMES])
            name = rng.choice(sorted(ANSWERS))
            world.add(rng.choice(BEGINNINGS), name, rng.randint(1, 40), rng.choice(TENANTS), session)
        elif act == "cancel" and (live := list(world.bench.scheduler.roster.sequences)):
            request_id = rng.choice(live)
            if request_id in world.expected:
                world.cancel(request_id)
        elif act == "pin":
            world.pin(rng.choice(BEGINNINGS), rng.choice(TENANTS), rng.random() < 0.5)
        elif act == "unpin":
            world.call(UnpinTemplate, rng.choice(BEGINNINGS))
        elif act == "end_session":
            world.call(EndSession, f"{rng.choice(TENANTS)}/{rng.choice(NAMES)}")
        elif act == "wait":
            world.bench.now_s += rng.choice([0.001, 1.0, 0.6 * TTL_S, 200.0])
        elif act == "interrupt" and world.bench.scheduler.num_outstanding:
            world.bench.engine.interrupt(world.bench.engine.plans[-1].step_id)


@pytest.mark.parametrize("lanes", [None, LANES], ids=["one lane", "lanes"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_long_walk(depth: int, lanes: LaneSettings | None) -> None:
    world = World(depth, lanes)
    wander(world, 600, seed=depth)
    world.finish()
    scheduler = world.bench.scheduler
    assert scheduler.num_preemptions > 0 and world.memory.sessions.num_expired > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("lanes", [None, LANES], ids=["one lane", "lanes"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_hundred_thousand_steps_lose_no_page(depth: int, lanes: LaneSettings | None) -> None:
    """In walks of 500 steps: what a walk remembers of its requests is checked after every step."""
    for seed in range(50):
        world = World(depth, lanes)
        world.bench.checks_plans = False
        wander(world, 500, seed)
        world.finish()
