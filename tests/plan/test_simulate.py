"""The simulator drives the real scheduler: results that can be worked out by hand, and repeats that change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from plan.trace_files import claude_row, mooncake_row, write_azure, write_lines
from twinpath.plan import (
    Machine,
    Options,
    Outcome,
    Simulation,
    SloClass,
    TraceSettings,
    load_workload,
    report_of,
    simulate,
)
from twinpath.scheduler import POLICIES, Coefficients, LaneSettings
from twinpath.types import EngineInfo

CLASSES = (SloClass("short", 200, 20, max_new_tokens=256), SloClass("long", 4000, 40, priority=1))
#: 10 ms a step, 1 ms more a row.
COST = Coefficients(0.0, 10.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)


def make_machine(num_pages: int = 512, max_num_seqs: int = 8, step_tokens: int = 64) -> Machine:
    info = EngineInfo(
        num_layers=4,
        hidden_size=1,
        vocab_size=1 << 31,
        max_model_len=4096,
        page_size=16,
        num_pages=num_pages,
        max_slots=max_num_seqs,
        max_step_tokens=step_tokens,
        depth=1,
    )
    return Machine("test", info, COST, max_num_seqs, step_tokens, CLASSES)


def simulate_rows(path: Path, machine: Machine, **options: object) -> list[Outcome]:
    settings = TraceSettings(num_requests=len(path.read_text().splitlines()), window_tokens=4096)
    return simulate(load_workload(str(path), settings, CLASSES), machine, Options("fcfs", **options))  # type: ignore[arg-type]


def test_one_request_takes_what_its_steps_cost(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "one.jsonl", [mooncake_row(0, 100, 5, [1])])
    [outcome] = simulate_rows(path, make_machine())
    # 64 rows in 10 + 64 ms, 36 in 46 ms; then four tokens at 11 ms each.
    assert outcome.ttft_ms == pytest.approx(120.0) and outcome.tpot_ms == pytest.approx(11.0)
    assert (outcome.num_tokens, outcome.error, outcome.met) == (5, "", True)
    assert outcome.last_s == pytest.approx(0.164)


def test_an_arrival_waits_for_the_running_step_and_no_longer(tmp_path: Path) -> None:
    rows = [mooncake_row(0, 10, 50, [1]), mooncake_row(125, 10, 2, [2])]
    path = write_lines(tmp_path / "two.jsonl", rows)
    for seed in range(20):
        workload = load_workload(str(path), TraceSettings(num_requests=2, seed=seed), CLASSES)
        if workload.arrivals[0].num_output == 50:
            break
    first, second = simulate(workload, make_machine(), Options("fcfs"))
    # Steps of the first end at 20, 31, ... 119, 130 ms; the second comes at 125 and has 11 rows in the next step.
    assert second.ttft_ms == pytest.approx(130 + 10 + 1 + 10 - 125)
    assert second.tpot_ms == pytest.approx(12.0)
    # 11 steps of its own at 11 ms by then, two shared ones at 21 and 12 ms, 36 more alone.
    assert first.last_s == pytest.approx((20 + 10 * 11 + 21 + 12 + 37 * 11) / 1e3)


def test_followers_come_their_think_time_after_the_answer_and_find_its_pages(tmp_path: Path) -> None:
    rows = [claude_row("s", 0, 640, 64, [[1, 10]]), claude_row("s", 1, 768, 1, [[1, 12]], think=2.5)]
    path = write_lines(tmp_path / "session.jsonl", rows)
    first, second = simulate_rows(path, make_machine())
    assert second.arrived_s == pytest.approx(first.last_s + 2.5)
    # 704 tokens are known, the last of them was sampled but never computed: 43 full pages.
    assert second.cached_tokens == 43 * 16
    assert second.ttft_ms == pytest.approx(2 * 10 + 768 - 43 * 16)


def test_outputs_are_hidden_from_the_scheduler(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "outputs.jsonl", [mooncake_row(10 * i, 50, 3 + i, [i]) for i in range(6)])
    workload = load_workload(str(path), TraceSettings(num_requests=6), CLASSES)
    simulation = Simulation(workload, make_machine(), Options("fcfs"))
    asked = []
    add = simulation.scheduler.add
    simulation.scheduler.add = lambda request: (asked.append(request.sampling.max_tokens), add(request))[1]  # type: ignore[method-assign, func-returns-value]
    simulation.run()
    assert len(set(asked)) == 1


def write_busy(tmp_path: Path, num: int) -> Path:
    """Shared prefixes, bursts, and more context than a small pool holds."""
    rows = [
        mooncake_row(
            35 * i + (i % 7) * 11, 30 + (i * 397) % 900, 1 + (i * 53) % 60, [i % 5, 5 + i, 1000 + i][: 1 + i % 3]
        )
        for i in range(num)
    ]
    return write_lines(tmp_path / "busy.jsonl", rows)


def flat(outcomes: list[Outcome]) -> list[tuple[object, ...]]:
    return [
        (o.arrival.index, o.arrived_s, o.first_s, o.last_s, o.num_tokens, o.cached_tokens, o.error, o.predicted_ttft_ms)
        for o in outcomes
    ]


@pytest.mark.parametrize("lanes", [None, LaneSettings(flex_threshold_tokens=256)], ids=["plain", "lanes"])
@pytest.mark.parametrize("policy", POLICIES)
def test_repeats_equal_step_by_step(tmp_path: Path, policy: str, lanes: LaneSettings | None) -> None:
    settings = TraceSettings(num_requests=120, window_tokens=4096, load=0.15)
    workload = load_workload(str(write_busy(tmp_path, 60)), settings, CLASSES)
    runs, steps = [], []
    for step_by_step in (True, False):
        options = Options(policy, lanes, noise=0.2, seed=1, step_by_step=step_by_step)
        simulation = Simulation(workload, make_machine(num_pages=300, max_num_seqs=4), options)
        next_step = simulation.scheduler.next_step
        num_plans = 0

        def count(max_repeat: int, next_step=next_step):  # type: ignore[no-untyped-def]
            nonlocal num_plans
            num_plans += 1
            return next_step(max_repeat)

        simulation.scheduler.next_step = count  # type: ignore[method-assign]
        runs.append(flat(simulation.run()))
        simulation.scheduler.check_integrity()
        steps.append((simulation.engine.num_steps, num_plans))
    assert [tuple(map(repr, row)) for row in runs[0]] == [tuple(map(repr, row)) for row in runs[1]]
    assert steps[0][0] == steps[1][0] and steps[1][1] < steps[0][1], "the horizon saved no plan"


def test_same_seed_same_run_and_noise_has_its_own(tmp_path: Path) -> None:
    workload = load_workload(str(write_busy(tmp_path, 30)), TraceSettings(num_requests=30), CLASSES)

    def run(seed: int) -> list[tuple[object, ...]]:
        return flat(simulate(workload, make_machine(), Options("fcfs", noise=0.1, seed=seed)))

    assert repr(run(1)) == repr(run(1)) != repr(run(2))


def test_report_counts_misses_and_starvation(tmp_path: Path) -> None:
    stamps = [f"2023-11-16 18:00:{i:02}.0000000" for i in range(6)]
    path = write_azure(tmp_path / "a.csv", zip(stamps, (50, 1000, 50, 1000, 50, 50), (5, 5, 30, 5, 5, 5), strict=True))
    workload = load_workload(str(path), TraceSettings(num_requests=6, load=4.0), CLASSES)
    simulation = Simulation(workload, make_machine(step_tokens=256), Options("fcfs"))
    outcomes = simulation.run()
    report = report_of(simulation)
    assert [part.num_requests for part in report.classes] == [4, 2]
    for part in report.classes:
        own = [o for o in outcomes if o.arrival.slo.name == part.name]
        met = [o for o in own if o.ttft_ms <= part.ttft_target_ms and o.tpot_ms <= part.tpot_target_ms]
        assert part.attainment == len(met) / len(own)
        assert part.starvation_s * 1e3 == max(o.ttft_ms for o in own) == part.ttft_ms.max
    assert report.goodput_rps == pytest.approx(sum(o.met for o in outcomes) / report.span_s)
    assert 0 < report.busy <= 1 and report.num_steps == simulation.engine.num_steps


def test_a_prompt_that_cannot_run_is_a_miss_and_its_session_goes_on(tmp_path: Path) -> None:
    rows = [claude_row("s", 0, 1000, 5, [[1, 15]]), claude_row("s", 1, 40, 5, [[90, 91]])]
    path = write_lines(tmp_path / "session.jsonl", rows)
    machine = make_machine(num_pages=20)
    workload = load_workload(str(path), TraceSettings(num_requests=2), CLASSES)
    simulation = Simulation(workload, machine, Options("fcfs"))
    refused, served = simulation.run()
    assert refused.error == "context_length_exceeded" and not refused.met
    assert served.met
    report = report_of(simulation)
    failed = next(part for part in report.classes if part.name == "long")
    assert (failed.num_failed, failed.attainment, failed.ttft_ms.p50) == (1, 0.0, float("inf"))
