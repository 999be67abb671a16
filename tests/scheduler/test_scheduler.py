"""Single decisions of the scheduler, each with a plan or an answer worked out by hand."""

from __future__ import annotations

import pytest

from scheduler.stepping import Bench, make_request
from twinpath.engine.scripted import END_ID, Script
from twinpath.scheduler import MemorySettings
from twinpath.types import PENDING_TOKEN, ErrorEvent, FinishReason, StepPlan, TokensEvent

LONG = Script(match="long", text="abcdefghij" * 20)


def rows(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(slot, start, length) of each segment."""
    return list(zip(plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist(), strict=True))


def test_decode_rows_go_before_prefill_rows_and_prefill_fills_the_step() -> None:
    bench = Bench(LONG, step_tokens=10)
    bench.add(make_request("decoding", "long"))
    bench.turn()
    bench.add(make_request("first", "x" * 14), make_request("second", "y" * 9))
    for _ in range(3):
        bench.turn()
    plans = bench.engine.plans
    assert rows(plans[1]) == [(0, 4, 1), (1, 0, 9)]
    assert rows(plans[2]) == [(0, 5, 1), (1, 9, 5), (2, 0, 4)]
    assert rows(plans[3]) == [(0, 6, 1), (1, 14, 1), (2, 4, 5)]
    assert [plan.sample.tolist() for plan in plans[1:]] == [[True, False], [True, True, False], [True, True, True]]


def test_a_plan_ahead_names_the_token_it_does_not_know() -> None:
    bench = Bench(Script(text="abc"), depth=3)
    bench.add(make_request("r", "hi"))
    assert [bench.submit() for _ in range(3)] == [True, True, True]
    plans = bench.engine.plans
    assert [rows(plan) for plan in plans] == [[(0, 0, 2)], [(0, 2, 1)], [(0, 3, 1)]]
    assert [plan.tokens.tolist() for plan in plans] == [list(b"hi"), [PENDING_TOKEN], [PENDING_TOKEN]]
    bench.run()
    assert bench.tokens("r") == [*b"abc", END_ID]


def test_overrun_past_a_stop_is_discarded_and_its_pages_come_back_after_the_last_plan() -> None:
    bench = Bench(Script(text=""), depth=3, page_size=2)
    bench.add(make_request("r", "hi"))
    for _ in range(3):
        bench.submit()
    bench.collect()
    assert bench.tokens("r") == [END_ID]
    assert bench.finish("r").reason is FinishReason.STOP
    assert bench.scheduler.pool.num_used > 0  # Two plans still write there.
    bench.collect()
    assert bench.scheduler.pool.num_used > 0
    bench.collect()
    assert bench.scheduler.pool.num_used == 0
    assert bench.tokens("r") == [END_ID]


def test_nothing_is_planned_past_max_tokens_at_any_depth() -> None:
    bench = Bench(LONG, depth=3)
    bench.add(make_request("r", "long", max_tokens=2))
    bench.run()
    assert bench.tokens("r") == list(b"ab")
    assert bench.finish("r").reason is FinishReason.LENGTH
    assert len(bench.engine.plans) == 2


def test_several_tokens_in_a_step_are_cut_at_the_stop_and_at_the_limit() -> None:
    bench = Bench(Script(match="stop", text="ab", chunks=(5,)), Script(match="limit", text="abcdefgh", chunks=(5,)))
    bench.add(make_request("stop", "stop"), make_request("limit", "limit", max_tokens=7))
    bench.run()
    assert bench.tokens("stop") == [*b"ab", END_ID]
    assert bench.tokens("limit") == list(b"abcdefg")
    assert bench.finish("limit").usage.completion_tokens == 7
    # The tokens of a chunk that have no KV yet are rows of the next step.
    assert (1, 5, 5) in rows(bench.engine.plans[1]) or (0, 5, 5) in rows(bench.engine.plans[1])


def test_the_window_ends_a_request_with_length() -> None:
    bench = Bench(LONG, max_model_len=20)
    bench.add(make_request("r", "long prompt of 17", max_tokens=100))
    bench.run()
    assert bench.tokens("r") == list(b"abc")
    assert bench.finish("r").reason is FinishReason.LENGTH


def test_min_tokens_keeps_an_early_stop_token_from_ending_the_request() -> None:
    bench = Bench(Script(tokens=(END_ID, 65, END_ID, 66)))
    bench.add(make_request("r", "hi", min_tokens=2))
    bench.run()
    assert bench.tokens("r") == [END_ID, 65, END_ID]


@pytest.mark.parametrize(
    ("prompt", "code"), [(b"", "invalid_prompt"), (b"x" * 32, "context_length_exceeded"), (b"x" * 99, None)]
)
def test_a_prompt_that_cannot_run_is_refused_at_once_and_alone(prompt: bytes, code: str | None) -> None:
    """The pool holds 32 tokens, less than the window."""
    bench = Bench(page_size=4, num_pages=8)
    bench.add(make_request("good", "hi"), make_request("bad", prompt))
    error = bench.end("bad")
    assert isinstance(error, ErrorEvent) and error.status == 400 and error.code == (code or "context_length_exceeded")
    bench.run()
    assert bench.tokens("good") == [*b"ok", END_ID]


def test_a_failing_row_ends_only_its_request() -> None:
    bench = Bench(Script(match="bad", text="abcdef", fail_at=2), LONG, depth=3)
    bench.add(make_request("bad", "bad"), make_request("good", "long", max_tokens=9))
    bench.run()
    assert bench.tokens("bad") == list(b"ab")
    error = bench.end("bad")
    assert isinstance(error, ErrorEvent) and error.message == "scripted failure"
    assert bench.tokens("good") == list(b"abcdefghi")
    assert bench.scheduler.pool.num_used == 0


@pytest.mark.parametrize("num_turns", [0, 1, 5])
def test_cancel_ends_a_request_in_queue_prefill_and_decode(num_turns: int) -> None:
    bench = Bench(LONG, step_tokens=8)
    bench.add(make_request("r", "a long prompt of 22 by"))
    for _ in range(num_turns):
        bench.turn()
    bench.cancel("r")
    finish = bench.finish("r")
    assert finish.reason is FinishReason.ABORT
    assert finish.usage.completion_tokens == max(0, num_turns - 2)
    assert bench.scheduler.pool.num_used == 0
    bench.cancel("r")
    bench.cancel("never seen")
    assert bench.finish("r") is finish


def test_interrupted_step_is_planned_again_with_its_inits_and_releases() -> None:
    bench = Bench(LONG, Script(match="hi", text="yes"))
    bench.add(make_request("gone", "long", max_tokens=1))
    bench.run()
    bench.add(make_request("r", "hi"))
    bench.submit()
    bench.engine.interrupt(bench.engine.plans[-1].step_id)
    bench.collect()
    assert bench.told["r"] == []
    bench.run()
    first, again = bench.engine.plans[1:3]
    assert rows(first) == rows(again) and [init.slot for init in again.inits] == [0]
    assert bench.tokens("r") == [*b"yes", END_ID]


def test_cancelling_a_dominant_prefill_names_the_step_to_interrupt_but_not_twice_in_a_row() -> None:
    bench = Bench(LONG, step_tokens=64)
    bench.add(make_request("stream", "long"))
    bench.turn()
    for round_index, expected in enumerate([True, False]):
        request_id = f"big{round_index}"
        bench.add(make_request(request_id, "x" * 200))
        bench.submit()
        step_id = bench.engine.plans[-1].step_id
        assert bench.scheduler.interruptible() == (((request_id, step_id),) if expected else ())
        if expected:
            bench.engine.interrupt(step_id)
        bench.cancel(request_id)
        bench.collect()
    assert bench.tokens("stream") == list(b"ab")


def test_a_chunk_longer_than_a_short_row_may_preempt_who_has_a_row_already() -> None:
    """The eldest wants twelve rows and a page when the youngest, a decode row, is already in the step."""
    bench = Bench(
        Script(match="eldest", text="0123456789" * 4, chunks=(12,)),
        Script(match="youngest", text="abcdefghij" * 4),
        page_size=4,
        num_pages=13,
        max_model_len=64,
    )
    bench.add(make_request("eldest", "eldest"), make_request("youngest", "youngest"))
    bench.run()
    assert bytes(bench.tokens("eldest")[:-1]) == b"0123456789" * 4
    assert bytes(bench.tokens("youngest")[:-1]) == b"abcdefghij" * 4
    assert bench.scheduler.num_preemptions > 0


def test_a_second_turn_computes_only_what_is_new() -> None:
    bench = Bench(Script(match="turn two", text="fine"), LONG, page_size=4)
    prompt = b"long history of a session"
    bench.add(make_request("one", prompt, max_tokens=10))
    bench.run()
    turn_two = prompt + bytes(bench.tokens("one")) + b"turn two"
    bench.add(make_request("two", turn_two))
    bench.run()
    # 25 + 10 tokens, of which the last has no KV: 34 computed, 8 full pages.
    assert bench.finish("two").usage.cached_tokens == 32
    plan = next(plan for plan in bench.engine.plans if any(init.num_prompt == len(turn_two) for init in plan.inits))
    assert rows(plan) == [(0, 32, len(turn_two) - 32)]
    assert bench.tokens("two") == [*b"fine", END_ID]


def test_at_least_one_prompt_token_is_computed_and_salts_do_not_share() -> None:
    bench = Bench(page_size=4)
    for request_id, salt in (("one", ""), ("two", ""), ("three", "other")):
        bench.add(make_request(request_id, "12345678", cache_salt=salt))
        bench.run()
    assert [bench.finish(r).usage.cached_tokens for r in ("one", "two", "three")] == [0, 4, 0]


def test_prefix_cache_off_caches_nothing() -> None:
    bench = Bench(page_size=4, memory=MemorySettings(enable_prefix_caching=False))
    for request_id in ("one", "two"):
        bench.add(make_request(request_id, "12345678"))
        bench.run()
    assert bench.finish("two").usage.cached_tokens == 0
    assert bench.scheduler.pool.num_idle == 0


def test_prompt_logprobs_cover_the_prompt_whatever_the_chunks_and_bypass_the_cache() -> None:
    bench = Bench(page_size=4, step_tokens=5)
    prompt = b"logprobs please"
    bench.add(make_request("warm", prompt))
    bench.run()
    bench.add(make_request("r", prompt, prompt_logprobs=1, logprobs=2))
    bench.run()
    first = bench.told["r"][0]
    assert isinstance(first, TokensEvent) and first.prompt_logprobs is not None and first.logprobs is not None
    assert [entry.token_id for entry in first.prompt_logprobs] == list(prompt[1:])
    assert [entry.token_id for entry in first.logprobs] == [ord("o")]
    assert len(first.logprobs[0].top) == 2
    assert bench.finish("r").usage.cached_tokens == 0
    assert all(event.prompt_logprobs is None for event in bench.told["r"][1:] if isinstance(event, TokensEvent))


def test_max_tokens_zero_echoes_logprobs_without_a_token() -> None:
    bench = Bench(step_tokens=3)
    bench.add(
        make_request("scored", b"12345", max_tokens=0, prompt_logprobs=0), make_request("none", b"1", max_tokens=0)
    )
    bench.run()
    (event, finish) = bench.told["scored"]
    assert isinstance(event, TokensEvent) and event.prompt_logprobs is not None
    assert [entry.token_id for entry in event.prompt_logprobs] == list(b"2345") and event.token_ids == []
    assert finish == bench.finish("scored") and bench.finish("scored").reason is FinishReason.LENGTH
    assert len(bench.told["none"]) == 1 and bench.finish("none").usage.completion_tokens == 0


def test_a_slot_is_released_before_its_next_owner_and_never_after() -> None:
    bench = Bench(LONG, max_num_seqs=1)
    bench.add(*(make_request(f"r{n}", "long", max_tokens=2) for n in range(3)))
    bench.run()
    for plan in bench.engine.plans:
        assert not set(plan.releases) & set(plan.slots.tolist())
    bench.add(make_request("other", "hi"), make_request("last", "hi"))
    bench.run()
    assert bench.tokens("last") == [*b"ok", END_ID]
