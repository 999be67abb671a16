"""`twinpath plan simulate`: prints, JSON, plot, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twinpath.cli.main import run
from twinpath.cli.plan import parse_class

SMALL = ["plan", "simulate", "--trace", "mix", "--requests", "40"]


def test_table_names_every_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--load", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "short" in out and "long" in out and "oldest wait" in out and "%" in out


def test_json_has_runs_and_paired_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--policy", "edf", "--policy", "sjf", "--seeds", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["seed"], row["policy"]) for row in document["runs"]] == [
        (0, "edf"),
        (0, "sjf"),
        (1, "edf"),
        (1, "sjf"),
    ]
    [difference] = document["differences"]
    assert (difference["policy"], difference["baseline"]) == ("sjf", "edf")
    assert difference["low"] <= difference["mean"] <= difference["high"]


def test_classes_cost_and_plot_from_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = tmp_path / "cost.json"
    names = (
        "plan",
        "forward",
        "decode_row",
        "early_row",
        "prefill_row",
        "decode_token",
        "prefill_token",
        "sampled_row",
    )
    cost.write_text(json.dumps(dict.fromkeys(names, 0.0) | {"forward": 1000.0, "knee_rows": 32}))
    plot = tmp_path / "waits.svg"
    flags = ["--slo", "all:1:1", "--cost", str(cost), "--plot", str(plot), "--json"]
    assert run([*SMALL, *flags]) == 0
    [row] = json.loads(capsys.readouterr().out)["runs"]
    [part] = row["classes"]
    assert (part["name"], part["num_requests"], part["attainment"]) == ("all", 40, 0.0)
    # Every step takes a second, whatever is in it.
    assert part["ttft_ms"]["p50"] >= 1000
    assert plot.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "best"], "--policy: best is none of fcfs"),
        (["--machine", "abacus"], "--machine: abacus is none of h200-8b"),
        (["--trace", "/nowhere"], "cannot read trace /nowhere"),
        (["--slo", "x:1"], "--slo: 'x:1' is not NAME:TTFT_MS:TPOT_MS"),
        (["--slo", "x:0:1"], "--slo: 'x:0:1' needs a name and numbers above zero"),
        (["--load", "0"], "above zero"),
        (["--cost", "/nowhere"], "--cost: cannot read /nowhere"),
        (["--plot", "/nowhere/x.svg"], "--plot: cannot write"),
    ],
)
def test_mistakes_are_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_cost_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cost.json"
    for content in ("[]", "{}", "no", '{"forward": 3}'):
        path.write_text(content)
        assert run([*SMALL, "--cost", str(path)]) == 2
        assert "must hold a JSON object" in capsys.readouterr().err


def test_classes() -> None:
    slo = parse_class("agents:300:25:2048")
    assert (slo.name, slo.ttft_ms, slo.tpot_ms, slo.max_new_tokens) == ("agents", 300, 25, 2048)
    assert parse_class("rest:1e4:50").max_new_tokens == 1 << 62


def test_the_command_tree_does_not_load_the_planner() -> None:
    code = "import sys, twinpath.cli.app; sys.exit(any(name.startswith('twinpath.plan') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
