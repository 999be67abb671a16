"""Mistakes are one line on stderr and exit code 2; nothing prints a stack trace."""

from __future__ import annotations

import pytest

from twinpath import __version__
from twinpath.cli.main import main, run


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("twinpath: ")
    return captured.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--port", "many"], "--port"),
        (["serve", "--prot", "1"], "--prot"),
        (["serve", "--log-level", "loud"], "loud"),
        (["serve", "--port", "70000"], "--port 70000: must be between 0 and 65535"),
        (["serve", "a", "--model", "b"], "two models given"),
        (["serve", "--tensor-parallel-size", "2"], "only --device cuda shares a model"),
        (["serve", "--tensor-parallel-size", "0"], "must be between 1 and 64"),
        (["serve", "--config", "/nowhere.toml"], "cannot read /nowhere.toml"),
        (["sing"], "sing"),
    ],
)
def test_mistake_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert message in one_line(capsys)


@pytest.mark.parametrize(("argv", "command"), [([], "serve"), (["models"], "pull"), (["plan"], "simulate")])
def test_a_command_that_needs_another_shows_those_there_are(
    argv: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert any(line.split()[:1] == [command] for line in captured.err.splitlines())


def test_wrong_environment_value_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TWINPATH_PORT", "many")
    assert run(["serve"]) == 2
    assert "--port" in one_line(capsys)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["twinpath", "version"])
    main()
    assert capsys.readouterr().out == f"twinpath {__version__}\n"
    assert run(["version"]) == 0


def test_precedence_is_flag_environment_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []
    monkeypatch.setattr("twinpath.cli.serve.run_server", lambda config, *_: seen.append(config.http.port) or 0)
    path = f"{tmp_path}/server.toml"
    with open(path, "w") as file:
        file.write("port = 1001\n")
    run(["serve", "--config", path])
    monkeypatch.setenv("TWINPATH_PORT", "1002")
    run(["serve", "--config", path])
    run(["serve", "--config", path, "--port", "1003"])
    assert seen == [1001, 1002, 1003], capsys.readouterr().err
