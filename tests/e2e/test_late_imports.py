"""Once a server is ready nothing is imported, compiled or loaded: the first request of a kind waits for no file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.served import Served, serving, write_script

pytestmark = pytest.mark.slow

#: Loaded by every Python that starts with its folder on the path: from the moment on in which the flag is there, says
#: what is imported or compiled, and by whom.
SITE = """
import os, sys
folder = os.environ["LATE_IMPORTS"]
inside = False
def heard(event, args):
    global inside
    if inside or event not in ("import", "compile", "ctypes.dlopen"):
        return
    inside = True
    try:
        if os.path.exists(folder + "/ready"):
            frame, stack = sys._getframe(1), []
            while frame is not None and len(stack) < 60:
                code = frame.f_code
                if "importlib" not in code.co_filename:
                    stack.append(code.co_filename.rpartition("/")[2] + ":" + code.co_name)
                frame = frame.f_back
            with open(folder + "/late", "a") as late:
                what = str(args[-1 if event == "compile" else 0])[:80]
                late.write(event + " " + what + " by " + " < ".join(stack) + chr(10))
    finally:
        inside = False
sys.addaudithook(heard)
"""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
QUESTION = [{"role": "user", "content": "Hello?"}]
CHAT: dict[str, Any] = {"messages": QUESTION, "max_tokens": 4}
#: Path and body of what clients send.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "streamed chat": ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    "scores": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "several answers": ("/v1/chat/completions", {**CHAT, "n": 2, "seed": 1, "temperature": 0.7, "stop": ["zzz"]}),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": [TOOL]}),
    "a session": ("/v1/chat/completions", {**CHAT, "session_id": "s"}),
    "completion": ("/v1/completions", {"prompt": "Hello", "max_tokens": 4}),
    "prompt scores": ("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "echo": True, "logprobs": 1}),
    "token ids": ("/v1/completions", {"prompt": [40, 41, 42], "max_tokens": 4, "stream": True}),
    "responses": ("/v1/responses", {"input": "Hello?", "max_output_tokens": 4}),
    "streamed responses": ("/v1/responses", {"input": "Hello?", "max_output_tokens": 4, "stream": True}),
    "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 4}),
    "tokenize": ("/tokenize", {"prompt": "Hello"}),
    "a mistake": ("/v1/chat/completions", {"messages": "?"}),
    "another mistake": ("/v1/completions", {"prompt": "Hello", "max_tokens": -1}),
}
#: Asked of the real model only: a scripted engine reads its vocabulary with the first.
STRUCTURED: dict[str, tuple[str, dict[str, Any]]] = {
    "a schema": (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ),
    "a demanded call": ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
}
PAGES = ("/v1/models", "/health", "/health/ready", "/metrics", "/v1/twinpath/sessions", "/nowhere")


def late(served: Served, folder: Path, requests: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, list[str]]:
    """What each kind of request made the server import or compile."""
    found: dict[str, list[str]] = {}
    log = folder / "late"
    with httpx.Client(base_url=served.url, timeout=60, trust_env=False) as client:
        (folder / "ready").touch()
        for page in PAGES:
            client.get(page)
            found[page] = take(log)
        for name, (path, body) in requests.items():
            answer = client.post(path, json={"model": "", **body} if path == "/v1/messages" else body)
            assert answer.status_code in ((400,) if "mistake" in name else (200,)), answer.text
            found[name] = take(log)
    return {name: lines for name, lines in found.items() if lines}


def take(log: Path) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    yield {"PYTHONPATH": str(tmp_path), "LATE_IMPORTS": str(tmp_path)}


def test_a_scripted_server_imports_nothing_after_ready(tmp_path: Path, watched: dict[str, str]) -> None:
    with serving(write_script(tmp_path), "--lanes", "on", env=watched) as served:
        assert served.url
        found = late(served, tmp_path, REQUESTS)
    assert not found, json.dumps(found, indent=1)


@pytest.mark.model
def test_a_server_of_a_real_model_imports_nothing_after_ready(
    tmp_path: Path, watched: dict[str, str], default_model_path: Path
) -> None:
    with serving(str(default_model_path), "--lanes", "on", env=watched) as served:
        assert served.url
        found = late(served, tmp_path, REQUESTS | STRUCTURED)
    assert not found, json.dumps(found, indent=1)
