"""Reading SSE streams strictly, and the second free rule: a joined stream equals the whole answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from api.live_server import LiveServer

#: Fields that differ between any two answers.
_PER_CALL = ("id", "created")


@dataclass(frozen=True)
class Stream:
    """One finished stream: its chunks in order, comments apart, and whether it ended with [DONE]."""

    chunks: list[dict[str, Any]]
    comments: list[str]
    done: bool

    @property
    def deltas(self) -> list[str]:
        return [choice["delta"]["content"] for choice in self.choices() if choice["delta"].get("content")]

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def finish_reasons(self) -> list[str]:
        return [choice["finish_reason"] for choice in self.choices() if choice["finish_reason"] is not None]

    @property
    def usage(self) -> dict[str, Any] | None:
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), None)

    @property
    def error(self) -> dict[str, Any] | None:
        return next((chunk["error"] for chunk in self.chunks if "error" in chunk), None)

    def choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices", [])]

    def message(self) -> dict[str, Any]:
        """Content, reasoning and calls, put together as openai-python does: calls by index, arguments joined."""
        calls: dict[int, dict[str, Any]] = {}
        for delta in (choice["delta"] for choice in self.choices()):
            for piece in delta.get("tool_calls", ()):
                index, function = piece["index"], piece["function"]
                if index in calls:
                    assert not piece.keys() & {"id", "type"} and "name" not in function, "said twice"
                    calls[index]["function"]["arguments"] += function["arguments"]
                else:
                    assert index == len(calls) and piece["type"] == "function"
                    calls[index] = {"id": piece["id"], "type": "function", "function": dict(function)}
        reasoning = "".join(choice["delta"].get("reasoning_content", "") for choice in self.choices())
        assert reasoning == "".join(choice["delta"].get("reasoning", "") for choice in self.choices())
        return {"content": self.text, "reasoning": reasoning, "calls": [without_id(call) for call in calls.values()]}

    def logprobs(self) -> list[dict[str, Any]]:
        return [entry for choice in self.choices() if choice["logprobs"] for entry in choice["logprobs"]["content"]]


def without_id(call: dict[str, Any]) -> dict[str, Any]:
    """Ids differ between any two answers."""
    assert call["id"].startswith("call_")
    return {"type": call["type"], "function": call["function"]}


def folded(message: dict[str, Any]) -> dict[str, Any]:
    """A whole answer's message in the form of `Stream.message`."""
    calls = message.get("tool_calls", [])
    assert message["role"] == "assistant" and (message["content"] or not calls or message["content"] is None)
    assert message.get("reasoning") == message.get("reasoning_content")
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "calls": [without_id(call) for call in calls],
    }


def parse(body: str) -> Stream:
    """Events are separated by a blank line; nothing may follow [DONE]."""
    chunks, comments, done = [], [], False
    assert body.endswith("\n\n")
    for block in body.removesuffix("\n\n").split("\n\n"):
        assert not done, "something after [DONE]"
        if block.startswith(":"):
            comments.append(block)
        elif block == "data: [DONE]":
            done = True
        else:
            assert block.startswith("data: ") and "\n" not in block, block
            chunks.append(json.loads(block.removeprefix("data: ")))
    return Stream(chunks, comments, done)


def stream(server: LiveServer, path: str, body: dict[str, Any], **options: Any) -> Stream:
    """POST with `stream: true`, read to the end, check what is true of every stream that went well."""
    answer = server.post(path, {**body, "stream": True}, **options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in answer.headers
    got = parse(answer.text)
    assert got.done
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in got.chunks}) == 1
    return got


def both(server: LiveServer, prompt: str, **fields: Any) -> tuple[Stream, dict[str, Any]]:
    """The same chat streamed and whole; checks that they agree in text, reason, log-probabilities and usage."""
    body = {"messages": [{"role": "user", "content": prompt}], **fields}
    options = {"stream_options": {"include_usage": True}}
    streamed = stream(server, "/v1/chat/completions", {**body, **options})
    answer: httpx.Response = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    [choice] = whole["choices"]
    assert streamed.message() == folded(choice["message"])
    assert streamed.finish_reasons == [choice["finish_reason"]]
    assert streamed.usage is not None
    # The second call finds the first one's prompt in the prefix cache; everything else is equal.
    for usage in (streamed.usage, whole["usage"]):
        usage.pop("twinpath", None)
        usage["prompt_tokens_details"]["cached_tokens"] = 0
    assert streamed.usage == whole["usage"]
    if choice["logprobs"]:
        assert streamed.logprobs() == choice["logprobs"]["content"]
    return streamed, whole
