"""The request line and the set-up of loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from twinpath.telemetry.logging import RequestLine, configure_logging


@pytest.fixture
def untouched_root() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("twinpath")
    handlers, level, our_level = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(our_level)


def line(**changes: object) -> RequestLine:
    values: dict[str, object] = {
        "request_id": "r1",
        "engine_id": "chatcmpl-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "num_prompt": 10,
        "num_cached": 8,
        "num_output": 5,
        "ttft_ms": 12.345,
        "total_ms": 50.0,
        "reason": "stop",
    }
    return RequestLine(**{**values, **changes})  # type: ignore[arg-type]


def test_a_line_says_everything_once() -> None:
    assert str(line()) == (
        'id="r1" engine_id=chatcmpl-1 POST /v1/chat/completions status=200 '
        "prompt=10 cached=8 tokens=5 ttft_ms=12.3 total_ms=50.0 reason=stop"
    )


def test_what_is_not_known_is_a_dash() -> None:
    text = str(line(engine_id="", ttft_ms=None, reason="", status=400))
    assert "engine_id=- " in text and "ttft_ms=- " in text and text.endswith("reason=-")


@pytest.mark.usefixtures("untouched_root")
def test_only_our_loggers_follow_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug")
    logging.getLogger("twinpath.x").debug("ours")
    logging.getLogger("httpx").info("theirs")
    logging.getLogger("httpx").warning("their warning")
    err = capsys.readouterr().err
    assert "ours" in err and "their warning" in err and "theirs" not in err


@pytest.mark.usefixtures("untouched_root")
def test_configuring_twice_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    configure_logging("info")
    logging.getLogger("twinpath.x").info("once")
    assert capsys.readouterr().err.count("once") == 1
