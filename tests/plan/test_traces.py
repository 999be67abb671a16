"""Traces in their public formats become arrivals whose shared prefixes, times and classes are those of the trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plan.trace_files import claude_row, mooncake_row, write_azure, write_lines
from twinpath.errors import UserError
from twinpath.plan import Arrival, SloClass, TraceSettings, load_workload
from twinpath.plan.mooncake import clock_tick
from twinpath.plan.tokens import Prompt

CLASSES = (SloClass("short", 100, 10, max_new_tokens=1000), SloClass("long", 1000, 20))


def tokens(arrival: Arrival) -> list[int]:
    """Prompt and answer."""
    return arrival.stream.tokens(0, arrival.num_prompt + arrival.num_output).tolist()


def num_common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def first_row_seed(source: Path, settings: TraceSettings) -> TraceSettings:
    """A seed whose window begins at the first row, so that a test can name rows."""
    for seed in range(1000):
        chosen = TraceSettings(**{**{n: getattr(settings, n) for n in settings.__slots__}, "seed": seed})
        workload = load_workload(str(source), chosen, CLASSES)
        if workload.arrivals[0].num_prompt == 1500:
            return chosen
    raise AssertionError("no such seed")


def test_mooncake_blocks_are_prefixes(tmp_path: Path) -> None:
    rows = [
        mooncake_row(0, 1500, 40, [0, 1, 2]),
        mooncake_row(5000, 1100, 5, [0, 1, 7]),
        mooncake_row(9000, 600, 0, [8, 9]),
        mooncake_row(9001, 1400, 9, [0, 1, 2]),
    ]
    path = write_lines(tmp_path / "conversation.jsonl", rows)
    settings = first_row_seed(path, TraceSettings(num_requests=4))
    workload = load_workload(str(path), settings, CLASSES)
    first, second, third, fourth = workload.arrivals
    assert [arrival.at_s for arrival in workload.arrivals] == pytest.approx([0, 5, 9, 9.001])
    assert [arrival.num_prompt for arrival in workload.arrivals] == [1500, 1100, 600, 1400]
    assert [arrival.num_output for arrival in workload.arrivals] == [40, 5, 1, 9]
    assert num_common(tokens(first), tokens(second)) == 1024
    assert num_common(tokens(first), tokens(third)) == 0
    assert num_common(tokens(first)[:1500], tokens(fourth)[:1400]) == 1400
    # What an unlimited cache leaves: 1500 - 0, 1100 - 1024, 600 - 0, and at least one token of the repeated prompt.
    assert [arrival.num_new for arrival in workload.arrivals] == [1500, 76, 600, 1]
    assert [arrival.slo.name for arrival in workload.arrivals] == ["long", "short", "short", "short"]


def test_coarse_stamps_are_spread_the_same_way_for_the_same_seed(tmp_path: Path) -> None:
    rows = [mooncake_row(3000 * (i // 8), 10 + i, 5, [i]) for i in range(80)]
    path = write_lines(tmp_path / "coarse.jsonl", rows)
    settings = TraceSettings(num_requests=80, seed=3)
    workload = load_workload(str(path), settings, CLASSES)
    times = [arrival.at_s for arrival in workload.arrivals]
    assert len(set(times)) == 80 and times == sorted(times)
    # Each row stays inside its tick (times count from the first row of the window: compare distances).
    by_row = {arrival.num_prompt - 10: arrival.at_s for arrival in workload.arrivals}
    in_order = [by_row[row] for row in range(80) if row + 8 in by_row]
    assert workload.notes and "3 s" in workload.notes[0]
    assert in_order
    again = load_workload(str(path), settings, CLASSES)
    other = load_workload(str(path), TraceSettings(num_requests=80, seed=4), CLASSES)
    assert [a.at_s for a in again.arrivals] == times
    assert [a.at_s for a in other.arrivals] != times


def test_clock_tick() -> None:
    assert clock_tick([0] * 8 + [3000] * 8 + [6000] * 8 + [12000] * 8) == 3000
    assert clock_tick([0, 40, 41, 90, 90]) == 0
    assert clock_tick([5, 5, 5, 5]) == 0


def test_past_its_end_a_trace_starts_again_and_shares_nothing(tmp_path: Path) -> None:
    rows = [mooncake_row(1000 * i, 1024, 5, [0, i + 1]) for i in range(5)]
    path = write_lines(tmp_path / "short.jsonl", rows)
    workload = load_workload(str(path), TraceSettings(num_requests=20, load=2.0), CLASSES)
    times = [arrival.at_s for arrival in workload.arrivals]
    assert times == sorted(times) and np.diff(times) == pytest.approx([0.5] * 19)
    salts = [arrival.salt for arrival in workload.arrivals]
    assert len(set(salts)) in (4, 5) and salts == sorted(salts, key=salts.index)
    assert all(workload.arrivals[salts.index(salt)].num_new == 1024 for salt in set(salts))


def test_azure(tmp_path: Path) -> None:
    stamps = ("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600", "2023-11-16 18:18:04.0319600")
    path = write_azure(tmp_path / "azure.csv", zip(stamps, (1500, 300, 20), (10, 8, 700), strict=True))
    workload = load_workload(str(path), first_row_seed(path, TraceSettings(num_requests=3)), CLASSES)
    assert [arrival.at_s for arrival in workload.arrivals] == pytest.approx([0, 0.052, 60.052])
    first, second, third = map(tokens, workload.arrivals)
    assert len(first) == 1510 and len(second) == 308 and len(third) == 720
    assert not set(first) & set(second) and not set(second) & set(third)


def test_claude_code_sessions(tmp_path: Path) -> None:
    rows = [
        claude_row("s1", 0, 1500, 70, [[1, 23]], think=0.0),
        claude_row("s1", 1, 1700, 30, [[1, 26]], think=9.0),
        claude_row("s1", 2, 1800, 10, [[1, 20], [30, 37]], think=5000.0),
        claude_row("s1/1", 0, 640, 12, [[1, 10]], think=None),
    ]
    path = write_lines(tmp_path / "sessions.jsonl", rows)
    workload = load_workload(str(path), TraceSettings(num_requests=4), CLASSES)
    first, second, third, child = workload.arrivals
    assert [a.after for a in workload.arrivals] == [-1, first.index, second.index, second.index]
    assert [a.at_s for a in workload.arrivals[1:]] == [9.0, 300.0, 0.0], "think times, the longest cut to 300 s"
    assert workload.followers == {first.index: [second.index], second.index: [third.index, child.index]}
    # The second prompt goes on with the first answer, so prompt and answer of the first are its prefix.
    assert num_common(tokens(first), tokens(second)) == 1500 + 70
    # The third rewrote what comes after block 20.
    assert num_common(tokens(second)[:1700], tokens(third)) == 20 * 64
    assert num_common(tokens(second), tokens(child)) == 0, "block ids are local to a session"
    assert [a.num_new for a in workload.arrivals] == [1500, 1700 - 23 * 64, 1800 - 20 * 64, 640]
    assert [a.session for a in workload.arrivals] == ["s1", "s1", "s1", "s1/1"]


def test_token_scale_keeps_shares(tmp_path: Path) -> None:
    rows = [claude_row("s", 0, 6400, 64, [[1, 100]]), claude_row("s", 1, 12800, 640, [[1, 50], [201, 350]])]
    path = write_lines(tmp_path / "sessions.jsonl", rows)
    one, other = load_workload(str(path), TraceSettings(num_requests=2, token_scale=0.1), CLASSES).arrivals
    assert (one.num_prompt, other.num_prompt, one.num_output) == (640, 1280, 6)
    assert num_common(tokens(one), tokens(other)) == 320
    assert other.num_new == 1280 - 320


def test_long_prompts_are_cut_and_noted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "long.jsonl", [mooncake_row(i, 5000, 100, [i]) for i in range(3)])
    workload = load_workload(str(path), TraceSettings(num_requests=3, window_tokens=1024), CLASSES)
    assert all(a.num_prompt + a.num_output == 1024 and a.num_output == 100 for a in workload.arrivals)
    assert workload.notes == ("3 prompts cut to the window of 1024 tokens",)


@pytest.mark.parametrize("kind", ["mix", "bursts"])
def test_composed_loads(kind: str) -> None:
    workload = load_workload(kind, TraceSettings(num_requests=4000), CLASSES)
    is_long = [a.num_prompt >= 8192 for a in workload.arrivals]
    # 95 % +- four standard errors.
    assert abs(sum(is_long) / 4000 - 0.05) < 4 * (0.05 * 0.95 / 4000) ** 0.5
    assert all(16 <= a.num_prompt <= 128 for a, long in zip(workload.arrivals, is_long, strict=True) if not long)
    times = np.array([a.at_s for a in workload.arrivals])
    counts = np.histogram(times, bins=np.arange(0, times[-1], 5.0))[0]
    dispersion = counts.var() / counts.mean()
    assert (dispersion > 2) == (kind == "bursts")


def test_prompt_is_a_sequence_that_numpy_can_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "one.jsonl", [mooncake_row(0, 1500, 4, [5, 6, 9])])
    [arrival] = load_workload(str(path), TraceSettings(num_requests=1), CLASSES).arrivals
    prompt = Prompt(arrival.stream, arrival.num_prompt)
    expected = [5] * 512 + [6] * 512 + [9] * 476
    assert len(prompt) == 1500 and list(prompt) == expected and np.array(prompt, np.int32).tolist() == expected
    assert [prompt[0], prompt[511], prompt[512], prompt[-1]] == [5, 5, 6, 9] and prompt[510:514] == [5, 5, 6, 6]
    with pytest.raises(IndexError):
        prompt[1500]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"timestamp": 1, "hash_ids": [1]}\n', r"bad:1: not a Mooncake row"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", r"bad:2: not an Azure row"),
        ('{"s": "a", "think": 1, "h": 3}\n', r"bad:1: not a row of a Claude Code session"),
        ("hello\n", r"neither a Mooncake, an Azure 2023 nor a Claude Code trace"),
        ("", r"neither"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", r"no requests"),
    ],
)
def test_bad_files_give_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_workload(str(path), TraceSettings(), CLASSES)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read trace"):
        load_workload(str(tmp_path / "absent"), TraceSettings(), CLASSES)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read trace"):
        load_workload(str(tmp_path / "binary"), TraceSettings(), CLASSES)
    with pytest.raises(UserError, match="above zero"):
        load_workload("mix", TraceSettings(load=0.0), CLASSES)


def test_classes_with_one_bound_share_its_requests() -> None:
    classes = (
        SloClass("short", 100, 10, max_new_tokens=1000, share=0.75),
        SloClass("patient", 900, 90, max_new_tokens=1000, share=0.25),
        SloClass("long", 1000, 20),
    )
    settings = TraceSettings(num_requests=2000)
    names = [arrival.slo.name for arrival in load_workload("mix", settings, classes).arrivals]
    num_short, num_patient = names.count("short"), names.count("patient")
    assert abs(num_patient / (num_short + num_patient) - 0.25) < 4 * (0.25 * 0.75 / 1900) ** 0.5
    plain = load_workload("mix", settings, CLASSES).arrivals
    assert [a.at_s for a in plain] == [a.at_s for a in load_workload("mix", settings, classes).arrivals]
    assert [name == "long" for name in names] == [a.slo.name == "long" for a in plain]


def test_a_session_has_one_patience(tmp_path: Path) -> None:
    rows = [claude_row(f"s{s}", i, 640 + 64 * i, 6, [[1, 10 + i]]) for s in range(40) for i in range(3)]
    path = write_lines(tmp_path / "sessions.jsonl", rows)
    classes = (SloClass("a", 100, 10, share=0.5), SloClass("b", 900, 90, share=0.5))
    workload = load_workload(str(path), TraceSettings(num_requests=120), classes)
    by_session = {
        a.session: {b.slo.name for b in workload.arrivals if b.session == a.session} for a in workload.arrivals
    }
    assert all(len(names) == 1 for names in by_session.values())
    assert set.union(*by_session.values()) == {"a", "b"}
