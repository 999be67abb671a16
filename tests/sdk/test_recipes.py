"""Every Python block of docs/recipes runs as it stands, and every setting of the others is what the server wants."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from api.live_server import MODEL, LiveServer
from sdk import questions as q

RECIPES = sorted((Path(__file__).parents[2] / "docs" / "recipes").glob("*.md"))
ADDRESS, SERVED = "http://127.0.0.1:8000", "smollm2-135m"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(path: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(path.read_text(encoding="utf-8")) if name == language]


PYTHON = [path for path in RECIPES if blocks(path, "python")]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.stem)
def test_the_snippet_runs(path: Path, server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = blocks(path, "python")
    assert ADDRESS in code and SERVED in code
    try:
        program = compile(code.replace(ADDRESS, server.url).replace(SERVED, MODEL), str(path), "exec")
        exec(program, {"__name__": "__main__"})
    except ImportError as missing:
        pytest.skip(f"{missing.name} is not installed (make test-sdk)")
    printed = capsys.readouterr().out
    assert q.ANSWER in printed or q.WEATHER_ANSWER in printed or "get_weather" in printed
    if "City" in code:
        assert "Paris" in printed and "2100000" in printed


def test_opencode_s_settings_are_json_that_names_the_server(server: LiveServer) -> None:
    [text] = blocks(next(path for path in RECIPES if path.stem == "opencode"), "json")
    settings = json.loads(text)
    provider = settings["provider"]["twinpath"]
    assert provider["options"]["baseURL"] == f"{ADDRESS}/v1"
    assert list(provider["models"]) == [SERVED]
    assert settings["model"] == f"twinpath/{SERVED}"
    # The kind of request that its provider package makes: the session in a header, an output cap, a stream.
    headers = {"x-session-affinity": "ses_1", "authorization": f"Bearer {provider['options']['apiKey']}"}
    body = {
        "model": MODEL,
        "max_tokens": provider["models"][SERVED]["limit"]["output"],
        "messages": [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = server.post("/v1/chat/completions", body, headers=headers)
    assert answer.status_code == 200 and '"finish_reason":"stop"' in answer.text


def test_claude_code_s_variables_name_the_server() -> None:
    shell = "".join(blocks(next(path for path in RECIPES if path.stem == "claude_code"), "sh"))
    assert f"ANTHROPIC_BASE_URL={ADDRESS}\n" in shell  # Its client adds /v1 itself.
    assert f"ANTHROPIC_MODEL={SERVED}" in shell


def test_the_index_names_every_recipe() -> None:
    [index] = [path for path in RECIPES if path.stem == "README"]
    named = set(re.findall(r"\]\((\w+\.md)\)", index.read_text(encoding="utf-8")))
    assert named == {path.name for path in RECIPES} - {"README.md"}
