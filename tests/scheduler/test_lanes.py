"""Lanes, step by step, the arithmetic of each plan done by hand.

Where nothing else is said a decode step alone takes 2 ms, and a chunk of 64 rows (1 + 32 x 0.45 + 32 x 0.1) / 10 =
1.86 ms a layer; a stream may wait 8 ms for a token, so prefill has 6 ms: three layers, or 13 rows beside the stream's.
"""

from __future__ import annotations

import random

import pytest

from scheduler.stepping import Bench, make_request
from twinpath.engine.scripted import END_ID, Script
from twinpath.kv import PrefixKeys
from twinpath.scheduler import Coefficients, CostModel, LaneSettings, StepShape
from twinpath.scheduler.cost import prefill_context
from twinpath.scheduler.curve import CurvedCost
from twinpath.scheduler.lanes import LanePlanner
from twinpath.scheduler.sequence import Lane, Sequence
from twinpath.scheduler.shapes import NO_STREAMS, streams_of
from twinpath.types import FinishReason, StepPlan, TokensEvent

SLICED = Coefficients(0.0, 1.0, 1.0, 0.45, 0.1, 0, 0, 0, knee_rows=32)
#: The forward is nearly all of a step: rows that ride along cost little.
MIXED = Coefficients(0.5, 10.0, 0.1, 0.1, 0.1, 0, 0, 0)
LONG = Script(match="stream", text="abcdefghij" * 30)


def bench_of(cost: Coefficients = SLICED, **settings: object) -> Bench:
    lanes = LaneSettings(
        flex_threshold_tokens=int(settings.pop("threshold", 100)),  # type: ignore[call-overload]
        itl_budget=float(settings.pop("budget", 4.0)),  # type: ignore[arg-type]
        idle_step_ms=float(settings.pop("idle_step_ms", 1000.0)),  # type: ignore[arg-type]
    )
    settings = {"step_tokens": 64, "layers": 10, "num_pages": 64, **settings}
    return Bench(LONG, lanes=lanes, cost=CostModel(cost), **settings)  # type: ignore[arg-type]


def streaming(bench: Bench) -> Bench:
    """One stream has its first tokens."""
    bench.add(make_request("stream", "stream", max_tokens=200))
    bench.turn()
    bench.turn()
    return bench


def layers(plan: StepPlan) -> tuple[int, int]:
    return plan.layer_begin, plan.layer_end


def rows(plan: StepPlan) -> list[tuple[int, int, int]]:
    return list(zip(plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist(), strict=True))


def test_a_chunk_goes_through_the_layers_between_decode_steps_and_fits_the_budget() -> None:
    """The last layer leaves 4.14 ms of its period: two layers of the next chunk."""
    bench = streaming(bench_of())
    bench.add(make_request("long", b"x" * 150))
    before = len(bench.engine.plans)
    for _ in range(9):
        bench.turn()
    plans = bench.engine.plans[before:]
    assert [layers(plan) for plan in plans] == [
        (0, 3), (0, 10), (3, 6), (0, 10), (6, 9), (0, 10), (9, 10), (0, 2), (0, 10)
    ]  # fmt: skip
    slices, steps = [plans[i] for i in (0, 2, 4, 6)], [plans[i] for i in (1, 3, 5, 8)]
    assert all(rows(plan) == [(1, 0, 64)] and plan.residual is slices[0].residual for plan in slices)
    assert rows(plans[7]) == [(1, 64, 64)] and plans[7].residual is not slices[0].residual
    assert all(len(plan.slots) == 1 and plan.slots[0] == 0 for plan in steps)
    bench.run()
    assert bench.tokens("long") == [*b"ok", END_ID] and bench.tokens("stream") == list(b"abcdefghij" * 20)


def test_prefill_rides_with_decode_rows_when_weights_are_dear() -> None:
    """Alone 10.6 ms, four times that is allowed: 318 rows at 0.1 ms would fit, a plan holds 64."""
    bench = streaming(bench_of(MIXED))
    bench.add(make_request("long", b"x" * 150))
    bench.turn()
    assert rows(bench.engine.plans[-1])[1] == (1, 0, 63) and layers(bench.engine.plans[-1]) == (0, 10)


def test_what_waits_for_no_stream_runs_whole() -> None:
    bench = bench_of()
    bench.add(make_request("long", b"x" * 150))
    for _ in range(3):
        bench.turn()
    assert [rows(plan) for plan in bench.engine.plans] == [[(0, 0, 64)], [(0, 64, 64)], [(0, 128, 22)]]
    assert all(layers(plan) == (0, 10) for plan in bench.engine.plans)


def test_a_step_without_streams_is_bounded_for_those_who_may_arrive() -> None:
    """12 ms are allowed, 64 rows take 18.6: six layers at 1.86, or 24 rows whole; slices get more done."""
    bench = bench_of(idle_step_ms=12.0)
    bench.add(make_request("long", b"x" * 150))
    bench.turn()
    bench.turn()
    assert [layers(plan) for plan in bench.engine.plans] == [(0, 6), (6, 10)]


def test_measured_time_counts_against_the_period() -> None:
    bench = streaming(bench_of())
    planner = bench.scheduler.planner
    assert planner is not None
    planner.note_planned(0.74, has_decode=False)
    planner.note_measured(planner.period, 0.74, 1.9)
    assert planner._spent_ms == pytest.approx(1.9)
    planner.note_planned(2.0, has_decode=True)
    planner.note_measured(planner.period - 1, 0.74, 5.0)
    assert planner._spent_ms == 0.0


def test_prefill_moves_on_even_when_nothing_fits() -> None:
    bench = streaming(bench_of(budget=1.0))
    bench.add(make_request("long", b"x" * 150))
    bench.run()
    assert bench.tokens("long") == [*b"ok", END_ID]


def test_a_requests_own_token_target_sets_the_budget() -> None:
    """Four milliseconds a token leave 2 ms for prefill: one layer."""
    bench = bench_of()
    bench.add(make_request("stream", "stream", max_tokens=200, tpot_target_ms=4.0))
    bench.turn()
    bench.turn()
    bench.add(make_request("long", b"x" * 150))
    bench.turn()
    assert layers(bench.engine.plans[-1]) == (0, 1)


def test_a_fast_request_overtakes_a_paused_flex_chunk() -> None:
    bench = streaming(bench_of())
    bench.add(make_request("long", b"x" * 150))
    bench.turn()
    bench.add(make_request("fast", b"y" * 64))
    before = len(bench.engine.plans)
    while not bench.told["fast"]:
        bench.turn()
    sliced = [plan for plan in bench.engine.plans[before:] if rows(plan)[0][0] != 0]
    # Slot 2 is the newcomer's: all its layers run before the long chunk goes on.
    assert [layers(plan) for plan in sliced] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert all(rows(plan) == [(2, 0, 64)] for plan in sliced)
    assert bench.told["long"] == []
    bench.run()
    assert bench.tokens("fast") == bench.tokens("long") == [*b"ok", END_ID]


@pytest.mark.parametrize("depth", [1, 3])
def test_cancel_between_slices_gives_everything_back(depth: int) -> None:
    bench = streaming(bench_of(depth=depth))
    used = bench.scheduler.pool.num_used
    bench.add(make_request("long", b"x" * 150))
    bench.turn()
    bench.turn()
    bench.cancel("long")
    assert bench.finish("long").reason is FinishReason.ABORT
    for _ in range(depth):
        bench.turn()
    assert bench.scheduler.pool.num_used <= used + 1  # The stream may have taken one more.
    bench.run()
    assert bench.tokens("stream") == list(b"abcdefghij" * 20)


@pytest.mark.parametrize("depth", [1, 3])
def test_an_interrupted_slice_starts_its_chunk_again(depth: int) -> None:
    bench = streaming(bench_of(depth=depth))
    bench.add(make_request("long", b"x" * 150))
    while bench.engine.plans[-1].layer_begin < 3:
        if bench.scheduler.num_outstanding == depth:
            bench.collect()
        bench.submit()
    assert layers(bench.engine.plans[-1]) == (3, 6)
    bench.engine.interrupt(bench.engine.plans[-1].step_id)
    before = len(bench.engine.plans)
    bench.run()
    again = next(plan for plan in bench.engine.plans[before:] if plan.layer_end == 3)
    assert rows(again) == [(1, 0, 64)] and again.inits
    assert bench.tokens("long") == [*b"ok", END_ID] and bench.tokens("stream") == list(b"abcdefghij" * 20)


def test_short_prefills_share_a_chunk_when_that_is_sooner_for_both_and_one_may_leave() -> None:
    """30 rows take 1 + 13.5 ms, 60 rows 1 + 14.4 + 2.8: the first waits 3.7 ms longer, the second 10.8 ms less."""
    bench = streaming(bench_of())
    bench.add(make_request("a", b"a" * 30), make_request("b", b"b" * 30))
    bench.turn()
    first = bench.engine.plans[-1]
    assert rows(first) == [(1, 0, 30), (2, 0, 30)] and first.layer_end < 10
    bench.cancel("a")
    while bench.scheduler.num_running > 1 or not bench.told["b"]:
        bench.turn()
    later = [plan for plan in bench.engine.plans if plan.layer_begin > 0]
    assert later and all(rows(plan) == [(2, 0, 30)] for plan in later)
    assert bench.tokens("b") == [*b"ok", END_ID]


def test_a_period_that_is_overdrawn_still_carries_a_few_rows() -> None:
    """Rows cost nothing here: the step takes as long with all of them as with none."""
    planner = LanePlanner(LaneSettings(itl_budget=0.5), CostModel(Coefficients(0, 10, 0, 0, 0, 0, 0, 0)), 10, 256)
    stream = Sequence(make_request("s", "x" * 10), 0, 9, PrefixKeys(16, ""))
    stream.num_planned = 9
    long = Sequence(make_request("r", "x" * 500), 1, 1, PrefixKeys(16, ""))
    choice = planner.choose(streams_of([stream]), [long], [])
    assert choice.layer_end is None and choice.rows == [(long, 4)]


def test_the_promise_names_lane_and_time_and_comes_with_the_first_token_only() -> None:
    bench = bench_of()
    bench.add(make_request("fast", b"x" * 32, max_tokens=1), make_request("flex", b"y" * 150))
    bench.run()
    told = {r: [e.promise for e in bench.told[r] if isinstance(e, TokensEvent)] for r in ("fast", "flex")}
    assert (told["fast"][1:], told["flex"][1:]) == ([], [None, None])
    fast, flex = told["fast"][0], told["flex"][0]
    assert fast is not None and flex is not None and (fast.lane, flex.lane) == ("fast", "flex")
    # 32 rows: 1 + 14.4 ms. With 32 of the others: 3.2 more. The 118 that are left: 18.6 and 17.6. A little is added for
    # FAST work to come: one request came in the 5 s that are assumed to have passed.
    assert fast.predicted_ttft_ms == pytest.approx(15.4)
    assert flex.predicted_ttft_ms == pytest.approx(18.6 + 18.6 + 17.6, rel=0.003)


def test_cached_tokens_decide_the_lane() -> None:
    bench = bench_of(page_size=4)
    for request_id in ("first", "second"):
        bench.add(make_request(request_id, b"x" * 150))
        bench.run()
    lanes = [bench.told[r][0].promise.lane for r in ("first", "second")]  # type: ignore[union-attr]
    assert lanes == ["flex", "fast"]


def test_a_promise_learns_from_its_outcomes() -> None:
    """The machine takes twice as long as the model says, in time the model does not see."""
    bench = bench_of()
    predicted = []
    for n in range(60):
        bench.add(make_request(f"r{n}", bytes([n]) * 32, max_tokens=1))
        bench.submit()
        bench.now_s += 0.0308
        bench.collect()
        promise = bench.told[f"r{n}"][0].promise  # type: ignore[union-attr]
        assert promise is not None and promise.predicted_ttft_ms is not None
        predicted.append(promise.predicted_ttft_ms)
    assert predicted[0] == pytest.approx(15.4) and predicted[-1] == pytest.approx(30.8, rel=0.02)
    forecast = bench.scheduler.forecast
    assert (
        forecast is not None and len(forecast.outcomes) == 60 and forecast.outcomes[-1].actual_ms == pytest.approx(30.8)
    )


def test_chunks_keep_to_the_engines_grain() -> None:
    """Chunks of 64, 128, ... rows at a multiple of 64 are what the engine attends fast."""
    cost = CostModel(Coefficients(0.1, 1.0, 0.1, 1.0, 0.1, 0.0, 0.0, 0.1))
    planner = LanePlanner(LaneSettings(idle_step_ms=8.0), cost, num_layers=8, max_tokens=512, chunk_grain=64)
    for num_planned, expected in ((0, 256), (64, 256), (40, 24), (448, 52)):
        sequence = Sequence(make_request("r", "x" * 500), 0, 1, PrefixKeys(16, ""))
        sequence.num_planned = num_planned
        choice = planner.choose(NO_STREAMS, [sequence], [])
        assert choice.layer_end == (2 if expected == 24 else 1)
        assert [length for _, length in choice.rows] == [expected]


def test_rows_beside_streams_stop_where_faster_chunks_may_begin() -> None:
    cost = CostModel(Coefficients(0.1, 1.0, 0.1, 0.01, 0.01, 0.0, 0.0, 0.1))
    planner = LanePlanner(LaneSettings(itl_budget=2.0), cost, num_layers=8, max_tokens=512, chunk_grain=64)
    stream = Sequence(make_request("s", "x" * 10), 0, 9, PrefixKeys(16, ""))
    stream.num_planned = 9
    long = Sequence(make_request("r", "x" * 500), 1, 1, PrefixKeys(16, ""))
    long.num_planned = 50
    assert planner.choose(streams_of([stream]), [long], []).rows == [(long, 14)]
    long.num_planned = 64
    ((_, length),) = planner.choose(streams_of([stream]), [long], []).rows
    assert length > 64


@pytest.mark.parametrize("is_curved", [False, True])
def test_no_chunk_has_a_better_rate_than_the_most_that_spares_looking_at_them(is_curved: bool) -> None:
    rng = random.Random(int(is_curved))
    num_seen = 0
    for _ in range(300):
        rates = [rng.choice([0.0, 1.0]) * rng.random() for _ in range(8)]
        cost = CostModel(Coefficients(*rates, knee_rows=rng.choice([8, 32, 128])))
        if is_curved:
            cost = CurvedCost(cost.coefficients, [(64, 5.0), (512, 5.0 + 9 * rates[0]), (1024, 30.0)], 1e-5, 1e-6)
        for _ in range(rng.randrange(6)):
            sliced = StepShape(num_prefill=rng.randrange(1, 3000), layer_share=0.5)
            cost.observe(sliced, cost.base(sliced) * rng.uniform(0.6, 1.5))
        start, num_rows, slack_ms = rng.randrange(2000), rng.randrange(1, 3000), rng.uniform(0.1, 60.0)
        most = cost.most_rate(start, num_rows, 3.0, slack_ms)
        for size in {num_rows, *[rng.randrange(1, num_rows + 1) for _ in range(20)]}:
            shape = StepShape(num_prefill=size, prefill_context=prefill_context(start, size))
            first_ms, more_ms = cost.predict_slices(shape, 10)
            for num_layers in range(1, 11):
                slice_ms = first_ms + (num_layers - 1) * more_ms
                if slice_ms <= slack_ms:
                    num_seen += 1
                    assert size * num_layers / 10 / (3.0 + slice_ms) <= most * (1 + 1e-9)
    assert num_seen > 5000


def test_short_prefill_runs_whole_while_nobody_waits_for_a_token() -> None:
    cost = CostModel(Coefficients(0.1, 1.0, 0.1, 0.1, 0.1, 0.0, 0.0, 0.1))
    settings = LaneSettings(flex_threshold_tokens=80, idle_step_ms=3.0, fast_step_ms=12.0)
    planner = LanePlanner(settings, cost, num_layers=8, max_tokens=512)
    fresh = Sequence(make_request("f", "x" * 64), 0, 1, PrefixKeys(16, ""))
    long = Sequence(make_request("l", "x" * 300), 1, 1, PrefixKeys(16, ""))
    long.lane = Lane.FLEX
    choice = planner.choose(NO_STREAMS, [fresh, long], [])
    assert choice.rows == [(fresh, 64)] and choice.layer_end is None
    alone = planner.choose(NO_STREAMS, [long], [])
    assert (
        cost.predict(StepShape(num_prefill=sum(n for _, n in alone.rows), layer_share=(alone.layer_end or 8) / 8))
        <= 3.1
    )
