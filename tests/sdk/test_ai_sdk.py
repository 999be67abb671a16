"""The AI SDK's OpenAI-compatible provider, which OpenCode and Cline use, under Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from api.live_server import LiveServer
from sdk import questions as q

HERE = Path(__file__).parent


def test_chat_streams_tools_structure_overflow_and_cancel(server: LiveServer, base_url: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (HERE / "node_modules" / "@ai-sdk" / "openai-compatible").exists():
        pytest.skip("@ai-sdk/openai-compatible is not installed (make test-sdk)")
    done = subprocess.run(
        [node, HERE / "ai_sdk.mjs", base_url, q.MODEL], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["text"] == results["streamedText"] == q.ANSWER
    assert results["outputTokens"] == results["streamedOutputTokens"] == len(q.ANSWER) + 1
    assert results["finishReason"] == "stop"
    assert results["toolLoop"] == results["streamedToolLoop"] == q.WEATHER_ANSWER
    assert results["twoCalls"] == {"cities": ["Oslo", "Rome"], "ids": 2}
    assert results["structured"] == q.CITY
    overflow = results["overflow"]
    assert overflow["isApiCallError"] and overflow["status"] == 400
    assert "maximum context length is 4096 tokens" in overflow["text"]
    server.wait_until(server.is_idle, "cancelled", 2)
