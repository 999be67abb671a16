"""The comparison runner's own arithmetic and processes, on a contestant and a server that need no model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from benchmarks import steps
from benchmarks.peers import find_peers
from benchmarks.servers import Server, ServerError, free_port
from benchmarks.table import render
from benchmarks.worker import Worker, WorkerError

CONTESTANT = """
import sys
sys.path.insert(0, {folder!r})
from protocol import BatchDecode, Generation, serve

class Echo:
    def describe(self):
        return {{"system": "echo"}}
    def generate(self, prompt, num_tokens):
        print("chatter on stdout must not reach the wire")
        return Generation(1.5, [2.0] * (num_tokens - 1), prompt[:num_tokens])
    def decode_batch(self, prompts, num_tokens):
        sys.exit("no batches here")

serve(Echo(), 0.25)
"""


@pytest.fixture
def echo(tmp_path: Path) -> list[str]:
    script = tmp_path / "echo.py"
    folder = Path(__file__).parents[2] / "benchmarks" / "contestants"
    script.write_text(CONTESTANT.format(folder=str(folder)))
    return [sys.executable, str(script)]


def test_a_worker_answers_over_its_wire(echo: list[str], tmp_path: Path) -> None:
    with Worker("echo", echo, tmp_path / "log") as worker:
        assert worker.description["system"] == "echo" and worker.description["load_s"] == 0.25
        answer = worker.ask("generate", prompt=[5, 6, 7], num_tokens=3)
    assert (answer["ttft_ms"], answer["token_ms"], answer["token_ids"]) == (1.5, [2.0, 2.0], [5, 6, 7])
    assert "chatter" in (tmp_path / "log").read_text()


def test_a_worker_that_dies_says_why(echo: list[str], tmp_path: Path) -> None:
    with Worker("echo", echo, tmp_path / "log") as worker, pytest.raises(WorkerError, match="no batches here"):
        worker.ask("decode_batch", prompts=[[1]], num_tokens=2)


def test_an_unknown_operation_is_refused(echo: list[str], tmp_path: Path) -> None:
    with Worker("echo", echo, tmp_path / "log") as worker, pytest.raises(WorkerError, match="unknown operation 'fly'"):
        worker.ask("fly")


def test_a_server_is_waited_for_and_ended(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("yes")
    port = free_port()
    argv = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with Server("files", argv, port, "/ready", tmp_path / "log") as server:
        assert server.ready_s > 0 and server.process.pid in server.pids()
    with pytest.raises(ProcessLookupError):
        os.kill(server.process.pid, 0)


def test_a_server_that_ends_early_says_why(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(ServerError, match="no such model"):
        Server("broken", argv, free_port(), "/", tmp_path / "log")


def values(decode: float, ttft: float, tokens: list[int]) -> dict[str, object]:
    return {"decode_ms": decode, "ttft_ms": ttft, "tokens": tokens}


def test_each_side_competes_with_its_best_setting_per_metric() -> None:
    rounds = [
        {
            "twinpath 1t": values(5.0, 100.0, []),
            "twinpath 2t": values(4.0, 60.0, []),
            "llama_cpp 2t flash off": values(8.0, 400.0, []),
            "llama_cpp 2t flash on": values(16.0, 300.0, []),
        }
    ] * 3
    found = steps.ratios(list(rounds[0]), rounds, ("decode_ms", "ttft_ms"))
    decode, ttft = found["decode_ms"]["llama_cpp"], found["ttft_ms"]["llama_cpp"]
    assert (decode["ours"], decode["theirs"], decode["ratio"].median) == ("twinpath 2t", "llama_cpp 2t flash off", 0.5)
    assert (ttft["theirs"], ttft["ratio"].median) == ("llama_cpp 2t flash on", 0.2)
    assert "openvino" not in found["decode_ms"]


@pytest.mark.parametrize(("theirs", "same"), [([1, 2, 3], 3), ([1, 9, 3], 1), ([9, 2, 3], 0)])
def test_agreement_counts_leading_tokens(theirs: list[int], same: int) -> None:
    assert steps.agreement(values(1, 1, [1, 2, 3]), values(1, 1, theirs))["equal_leading_tokens"] == same


def test_table_pads_short_rows() -> None:
    assert render([["a", "b"], ["long"]]) == "| a    | b |\n|------|---|\n| long |   |"


@pytest.mark.parametrize(("answer", "found"), [("echo '{}'", True), ("exit 1", False), (None, False)])
def test_peers_whose_installation_broke_off_are_none(tmp_path: Path, answer: str | None, found: bool) -> None:
    if answer is not None:
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\n{answer}\n")
        python.chmod(0o755)
    assert (find_peers(tmp_path) is not None) is found
