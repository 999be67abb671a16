"""Reading SSE streams whose events have names: Messages and Responses."""

from __future__ import annotations

import json
from typing import Any

from api.live_server import LiveServer


def parse(body: str) -> list[dict[str, Any]]:
    """The events' data, in order; each is named by its own `type`. Comments are skipped."""
    events = []
    assert body.endswith("\n\n")
    for block in body.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def stream(server: LiveServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """POST with `stream: true`, read to the end."""
    answer = server.post(path, {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parse(answer.text)
