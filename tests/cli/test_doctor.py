"""The doctor reports what it finds and fails when something is wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from twinpath import __version__
from twinpath.cli import doctor
from twinpath.cli.doctor import Finding, collect
from twinpath.errors import NativeBuildError


def test_json_report_names_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.run_doctor(as_json=True)
    report = json.loads(capsys.readouterr().out)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert findings["twinpath"]["value"] == __version__
    assert {"python", "cpu", "compiler", "model cache", "file limit", "memory"} <= findings.keys()


def test_a_broken_check_is_a_failure_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_native() -> Iterator[Finding]:
        raise NativeBuildError("no library [at all]")
        yield

    monkeypatch.setattr(doctor, "collect", lambda: collect((check_native,)))
    assert doctor.run_doctor(as_json=False) == 1
    assert "no library [at all]" in capsys.readouterr().out


def test_a_loop_that_wakes_late_is_a_warning_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "STALL_CHECK_S", 0.01)
    monkeypatch.setattr(doctor, "STALL_MS", -1.0)
    [late] = doctor.check_stalls()
    assert late.status == "warn" and "--trace-stalls-ms" in late.hint
    monkeypatch.setattr(doctor, "STALL_MS", 1e9)
    [fine] = doctor.check_stalls()
    assert fine.status == "ok" and "woke at most" in fine.value


def test_a_taken_port_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = doctor.HttpConfig(port=taken.getsockname()[1])
        monkeypatch.setattr(doctor, "HttpConfig", lambda: address)
        [finding] = doctor.check_ports()
    assert finding.status == "warn" and str(address.port) in finding.value
