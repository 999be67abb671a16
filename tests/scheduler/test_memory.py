"""Who keeps pages under pressure, who gives way, and what a turn leaves behind."""

from __future__ import annotations

import pytest

from scheduler.stepping import Bench, make_request
from twinpath.engine.scripted import Script
from twinpath.ipc.messages import PinnedPrompt, PinTemplate
from twinpath.scheduler import Coefficients, CostModel, LaneSettings, MemorySettings
from twinpath.scheduler.holdings import Holdings
from twinpath.scheduler.memory import Memory
from twinpath.types import FinishReason, Request, TokensEvent

#: One page is four tokens; every script says as much as it is asked for.
SCRIPTS = (Script(match="", bytes_hex=bytes([120] * 200).hex()),)


def bench(num_pages: int = 32, **options: object) -> Bench:
    shape = {"page_size": 4, "num_pages": num_pages, "max_model_len": 200, "max_slots": 6, "step_tokens": 64}
    memory = MemorySettings(session_ttl_s=100.0)
    return Bench(*SCRIPTS, **{"memory": memory, **shape, **options})  # type: ignore[arg-type]


def lanes(num_pages: int = 32, **options: object) -> Bench:
    settings = LaneSettings(flex_threshold_tokens=24, itl_budget=1000.0, idle_step_ms=1000.0)
    return bench(
        num_pages, lanes=settings, cost=CostModel(Coefficients(0.1, 1.0, 0.1, 0.1, 0.1, 0.0, 0.0, 0.1)), **options
    )


def turn(request_id: str, prompt: str, max_tokens: int = 1, session: str = "s") -> Request:
    return make_request(request_id, prompt, max_tokens, session=session, session_name=session)


def cached_tokens(one: Bench, request_id: str) -> int:
    first = next(event for event in one.told[request_id] if isinstance(event, TokensEvent))
    return first.cached_tokens


def kept(memory: Memory) -> tuple[int, int]:
    """Pages kept for sessions, and cold ones."""
    return memory.pool.num_kept, memory.pool.num_cold


def test_a_second_turn_starts_where_the_first_ended() -> None:
    one = bench()
    one.add(turn("a", "p" * 20, 12))
    one.run()
    assert kept(one.scheduler.memory) == (7, 0)  # 20 + 12 tokens, the last of which was never computed.
    one.add(turn("b", "p" * 20 + "x" * 12 + "and more", 1))
    one.run()
    assert cached_tokens(one, "b") == 28


def test_a_session_outlives_prefixes_that_came_later() -> None:
    """A tool pause of 20 s in which others fill memory many times over."""
    one = bench(num_pages=24)
    one.add(turn("a", "s" * 40))
    one.run()
    for index in range(20):
        one.now_s += 1.0
        one.add(make_request(f"other{index}", f"{index:02}" * 20, 8))
        one.run()
    one.add(turn("b", "s" * 48))
    one.run()
    assert cached_tokens(one, "b") == 40
    # Of the others only the latest is still there.
    one.add(make_request("again", "00" * 20, 1))
    one.run()
    assert cached_tokens(one, "again") == 0


def test_after_its_time_a_session_is_a_stranger() -> None:
    one = bench()
    one.add(turn("a", "s" * 40))
    one.run()
    one.now_s += 100.0
    assert one.scheduler.memory.expire_sessions() is None
    assert one.scheduler.pool.num_free == 32
    one.add(turn("b", "s" * 40))
    one.run()
    assert cached_tokens(one, "b") == 0


def test_expiry_is_seen_by_arrivals_though_nobody_looked() -> None:
    one = bench()
    one.add(turn("a", "s" * 40))
    one.run()
    one.now_s += 200.0
    one.add(turn("b", "s" * 40))
    one.run()
    assert cached_tokens(one, "b") == 0


def test_sessions_are_never_so_protected_that_somebody_cannot_run() -> None:
    one = bench(num_pages=24)
    for index in range(5):
        one.add(turn(f"a{index}", f"{index}" * 16, session=f"s{index}"))
        one.run()
    assert one.scheduler.pool.num_kept == 20
    one.add(make_request("big", "b" * 60, 30))
    one.run()
    assert one.finish("big").reason is FinishReason.LENGTH
    assert len(one.tokens("big")) == 30


@pytest.mark.parametrize("num_turns", [1, 4])
def test_a_faded_session_goes_before_a_fresher_prefix(num_turns: int) -> None:
    """After one turn a session fades in half its time, after four in four fifths."""
    one = bench(num_pages=16, memory=MemorySettings(session_ttl_s=1000.0))
    for index in range(num_turns):
        one.add(turn(f"a{index}", "s" * 24))
        one.run()
    one.now_s += 600.0
    one.add(make_request("prefix", "p" * 24, 1))
    one.run()
    assert kept(one.scheduler.memory) == (6, 6)
    one.add(make_request("takes three", "n" * 28, 1))
    one.run()
    assert kept(one.scheduler.memory) == ((3, 6 + 7) if num_turns == 1 else (6, 3 + 7))


def test_a_cancelled_turn_leaves_its_prompt_and_nothing_that_it_said() -> None:
    one = bench()
    one.add(turn("a", "p" * 18, 100))
    for _ in range(12):
        one.turn()
    assert len(one.tokens("a")) == 12
    one.cancel("a")
    one.run()
    memory = one.scheduler.memory
    assert kept(memory) == (4, 0) and memory.pool.num_free == 28
    session = memory.sessions.get("s")
    assert session is not None and session.chains[0].tokens.tolist() == [ord("p")] * 16
    one.add(make_request("b", "p" * 18 + "x" * 12, 1))
    one.run()
    assert cached_tokens(one, "b") == 16


def test_a_turn_cancelled_in_the_queue_leaves_its_session_as_it_was() -> None:
    one = bench(max_num_seqs=1)
    one.add(turn("a", "p" * 20))
    one.run()
    one.add(make_request("first", "f" * 8, 50), turn("b", "p" * 40))
    one.turn()
    one.cancel("b")
    one.run()
    session = one.scheduler.memory.sessions.get("s")
    assert session is not None and session.num_active == 0 and session.chains[0].num_pages == 5


def test_sessions_off_keeps_nothing_and_prefixes_still_work() -> None:
    one = bench(memory=MemorySettings(enable_sessions=False))
    one.add(turn("a", "p" * 20))
    one.run()
    assert len(one.scheduler.memory.sessions) == 0 and kept(one.scheduler.memory) == (0, 5)


# ------------------------------------------------------------------------------------------------------------- lanes


@pytest.mark.parametrize("depth", [1, 3])
def test_flex_gives_way_to_a_fast_request_that_grows_though_it_is_older(depth: int) -> None:
    one = lanes(num_pages=24, depth=depth)
    one.add(make_request("flex", "f" * 60, 30))
    one.turn()
    one.add(make_request("fast", "a" * 8, 60))
    one.run()
    memory = one.scheduler.memory
    assert one.scheduler.num_preemptions > 0 and memory.num_fast_preemptions == 0
    assert one.tokens("flex") == [120] * 30 and one.tokens("fast") == [120] * 60


def test_flex_gives_borrowed_slabs_back_when_a_fast_request_wants_to_start() -> None:
    one = lanes(num_pages=32)
    one.add(make_request("flex", "f" * 108, 20))
    one.turn()
    slabs = one.scheduler.memory.slabs
    assert one.scheduler.memory.pool.num_free < 8 and any(slabs.lent_to(lane) for lane in slabs.home)
    one.add(make_request("fast", "a" * 24, 2))
    one.turn()
    assert one.scheduler.num_preemptions == 1
    assert [s.request_id for s in one.scheduler.roster.running] == ["fast"]
    one.run()
    assert one.tokens("flex") == [120] * 20


def test_flex_within_its_own_slabs_is_left_alone() -> None:
    one = lanes(num_pages=32)
    one.add(make_request("flex", "f" * 52, 8), make_request("fast", "a" * 24, 8))
    one.turn()
    one.add(*(make_request(f"fast{n}", f"{n}" * 24, 8) for n in range(3)))
    one.run()
    assert one.scheduler.num_preemptions == 0


def test_flex_waits_for_running_requests_rather_than_for_fresh_sessions_to_go() -> None:
    one = lanes(num_pages=32)
    one.add(turn("a", "s" * 24))
    one.run()
    one.add(make_request("fast", "a" * 8, 20))
    one.turn()
    one.add(make_request("flex", "f" * 100, 1))
    one.turn()
    assert one.scheduler.num_waiting == 1 and one.scheduler.pool.num_kept == 6
    one.run()  # With nobody left to wait for, it takes what it needs.
    assert one.finish("flex").reason is FinishReason.LENGTH


def test_when_all_are_fast_the_youngest_gives_way_and_is_counted() -> None:
    one = lanes(num_pages=16)
    one.scheduler.memory._mean_outputs = 0.0  # Nobody expected them to say so much.
    one.add(make_request("a", "a" * 8, 40), make_request("b", "b" * 8, 40))
    one.run()
    assert one.scheduler.memory.num_fast_preemptions > 0
    assert one.tokens("a") == one.tokens("b") == [120] * 40


def test_a_fast_request_starts_when_there_is_room_for_what_others_will_say() -> None:
    one = lanes(num_pages=16)
    one.add(make_request("a", "a" * 8, 40), make_request("b", "b" * 8, 40))
    one.run()
    assert one.scheduler.num_preemptions == 0
    assert one.tokens("a") == one.tokens("b") == [120] * 40


def test_a_context_is_whole_though_a_twin_computed_it_first_and_was_evicted() -> None:
    """Two requests compute one beginning side by side; the first one's pages are found, until they are taken back."""
    one = bench(num_pages=16, step_tokens=8)
    one.add(make_request("twin", "s" * 20, 1), turn("a", "s" * 20, 20))
    while len(one.told["twin"]) < 2:
        one.turn()
    one.scheduler.memory.forget_prefixes()
    one.run()
    session = one.scheduler.memory.sessions.get("s")
    assert session is not None and session.num_pages == 39 // 4


@pytest.mark.parametrize("session", ["", "s"])
def test_a_request_that_waited_while_a_shared_template_came_and_went_has_its_own_keys(session: str) -> None:
    """Keys are made at arrival; the pages that it starts with are those that are there when it is admitted."""
    one = lanes(num_pages=64, max_num_seqs=1)
    holdings = Holdings(one.scheduler)
    beginning = "t" * 16
    one.add(make_request("first", "f" * 8, 30))
    one.turn()
    holdings.handle(PinTemplate(1, PinnedPrompt("t", list(beginning.encode()), shared=True)))
    one.add(make_request("waits", beginning + "w" * 4, 4, session=session, session_name=session, cache_salt="own"))
    one.run()
    assert cached_tokens(one, "waits") == 16
    one.add(make_request("again", beginning + "w" * 4 + "more", 1, cache_salt="own"))
    one.run()
    assert cached_tokens(one, "again") == 20
    memory = one.scheduler.memory
    memory.remove_template("t")
    memory.sessions.close("s")
    memory.forget_prefixes()
    one.add(make_request("alone", beginning + "w" * 4 + "more", 1, cache_salt="own"))
    one.run()
    one.add(make_request("other", beginning + "w" * 4 + "more", 1, cache_salt="other"))
    one.run()
    assert cached_tokens(one, "alone") == 0 == cached_tokens(one, "other")


def test_a_request_cancelled_after_it_was_preempted_leaves_nothing_that_it_said() -> None:
    one = bench(num_pages=16)
    one.add(make_request("old", "o" * 8, 50), turn("young", "y" * 8, 50))
    while not one.scheduler.num_preemptions:
        one.turn()
    assert len(one.tokens("young")) > 8
    one.cancel("young")
    one.run()
    one.add(make_request("again", "y" * 8 + "x" * 8, 1))
    one.run()
    assert cached_tokens(one, "again") <= 8
