"""Policies: orders worked out by hand; the queue serves in their order."""

from __future__ import annotations

import math

import pytest

from scheduler.stepping import Bench, make_request
from twinpath.kv import PrefixKeys
from twinpath.scheduler.policy import POLICIES, make_policy, over_age, urgency
from twinpath.scheduler.queue import WaitingQueue
from twinpath.scheduler.sequence import Sequence


def sequence(order: int, num_prompt: int = 10, prefill_ms: float = 0.0, **service: object) -> Sequence:
    made = Sequence(make_request(f"r{order}", b"x" * num_prompt, **service), order, 4, PrefixKeys(16, ""))
    made.prefill_ms = prefill_ms
    return made


def served(policy: str, *sequences: Sequence, now_s: float) -> list[int]:
    queue = WaitingQueue(make_policy(policy))
    for one in sequences:
        queue.add(one, now_s)
    return [one.order for one in queue.ordered(now_s)]


MIX = (
    sequence(0, 90, arrival_s=1.0, ttft_target_ms=9000, priority=1),
    sequence(1, 20, arrival_s=2.0, ttft_target_ms=500, priority=2),
    sequence(2, 50, arrival_s=3.0, ttft_target_ms=1000, priority=0),
    sequence(3, 40, arrival_s=4.0, priority=1),
)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", [0, 1, 2, 3]), ("priority", [2, 0, 3, 1]), ("sjf", [1, 3, 2, 0]), ("edf", [1, 2, 0, 3])],
)
def test_static_orders(policy: str, order: list[int]) -> None:
    assert served(policy, *MIX, now_s=4.0) == order


def test_the_base_rule_is_one_then_a_ramp_then_a_logarithm() -> None:
    assert [urgency(0.0), urgency(0.9), urgency(1.05), urgency(1.2)] == pytest.approx([1.0, 1.0, 1.5, 2.0])
    assert urgency(2.0) == pytest.approx(3.5 + math.log(2.0))
    # Waited 0.33, 4 and 1.0 targets; the fourth has none and half a minute.
    assert served("base", *MIX, now_s=4.0) == [1, 2, 0, 3]


def test_twinpath_serves_by_deadline_and_length_and_relegates_who_cannot_be_met() -> None:
    tight = sequence(0, arrival_s=10.0, ttft_target_ms=2000, prefill_ms=500)  # 12.0, and 3.0 for its length
    brief = sequence(1, arrival_s=10.0, ttft_target_ms=2500, prefill_ms=100)  # 12.5 and 0.6
    lost = sequence(2, arrival_s=10.0, ttft_target_ms=400, prefill_ms=300)  # had to start by 10.1
    assert served("twinpath", tight, brief, lost, now_s=10.5) == [1, 0, 2]
    assert served("edf", tight, brief, lost, now_s=10.5) == [2, 0, 1]


def test_weight_shortens_the_handicap() -> None:
    heavy = sequence(0, arrival_s=10.0, ttft_target_ms=2000, prefill_ms=500, weight=4.0)  # 12.0 and 0.75
    brief = sequence(1, arrival_s=10.0, ttft_target_ms=2500, prefill_ms=100)  # 12.5 and 0.6
    assert served("twinpath", heavy, brief, now_s=10.5) == [0, 1]


def test_who_is_half_done_is_not_overtaken_by_a_newcomer_as_long_as_its_other_half() -> None:
    policy = make_policy("twinpath")
    begun = sequence(0, 64, arrival_s=10.0, ttft_target_ms=1000, prefill_ms=60)
    newcomer = sequence(1, 32, arrival_s=10.1, ttft_target_ms=1000, prefill_ms=30)
    assert policy.key(newcomer, 10.1) < policy.key(begun, 10.1)
    begun.num_planned = 32
    assert policy.key(begun, 10.1) < policy.key(newcomer, 10.1)


def test_observing_relegates_nobody() -> None:
    lost = sequence(0, arrival_s=10.0, ttft_target_ms=400, prefill_ms=300)
    fine = sequence(1, arrival_s=10.0, ttft_target_ms=5000, prefill_ms=100)
    for relegate, order in ((True, [1, 0]), (False, [0, 1])):
        policy = make_policy("twinpath", relegate=relegate)
        assert [one.order for one in sorted((lost, fine), key=lambda one: policy.key(one, 10.5))] == order


def test_nobody_waits_for_longer_than_four_targets_behind_others() -> None:
    old = sequence(0, arrival_s=1.0, ttft_target_ms=1000, prefill_ms=900)
    new = sequence(1, arrival_s=4.9, ttft_target_ms=500)
    assert served("twinpath", old, new, now_s=4.9) == [1, 0] and not over_age(old, 4.9)
    assert served("twinpath", old, new, now_s=5.1) == [0, 1] and over_age(old, 5.1)


def test_dynamic_keys_change_with_time_and_removal_still_finds_everybody() -> None:
    queue = WaitingQueue(make_policy("twinpath"))
    first, second = sequence(0, arrival_s=1.0, ttft_target_ms=100), sequence(1, arrival_s=1.0, ttft_target_ms=5000)
    queue.add(first, 1.0)
    queue.add(second, 1.0)
    assert [one.order for one in queue.ordered(1.0)] == [0, 1]
    assert [one.order for one in queue.ordered(1.2)] == [1, 0]
    assert len(queue) == 2
    queue.remove(first)
    assert [one.order for one in queue.ordered(1.2)] == [1] and first not in queue and second in queue
    with pytest.raises(KeyError):
        queue.remove(first)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_everybody_under_pressure(policy: str) -> None:
    bench = Bench(policy=policy, max_num_seqs=2, page_size=4, num_pages=16, max_model_len=64)
    for n in range(8):
        bench.add(make_request(f"r{n}", b"prompt %d" % n, 20, priority=n % 3, ttft_target_ms=100.0 * (8 - n)))
        bench.now_s += 0.05
        bench.turn()
    bench.run()
    assert all(bytes(bench.tokens(f"r{n}")[:-1]) == b"ok" for n in range(8))
