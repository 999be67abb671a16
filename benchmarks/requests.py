"""Bodies that the pieces send, and the client that sends them. Every prompt starts differently.

No server's prefix cache may help.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import msgspec

from benchmarks.servers import Server
from benchmarks.settings import PROMPT
from twinpath.bench import LoadClient, RequestRecord

#: About 128 tokens of the benchmark text.
PROMPT_CHARACTERS = 560


def fresh_text(index: int) -> str:
    return f"{index} stations. {PROMPT[:PROMPT_CHARACTERS]}"


def fresh_ids(ids: list[int], index: int, num_tokens: int) -> list[int]:
    """`num_tokens` ids whose first differs from those of every other index."""
    return [1000 + index, *ids[1:num_tokens]]


def served_model(url: str) -> str:
    """The first model that the server lists."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name


class Streams:
    """Greedy streams from one server; a request that fails stops the benchmark, for its time would mean nothing."""

    def __init__(self, server: Server, timeout_s: float = 120.0) -> None:
        self.server = server
        self._model = served_model(server.url)
        self._client = LoadClient(server.url, keep_text=True, timeout_s=timeout_s)

    async def complete(self, prompt: str | list[int], num_tokens: int, **fields: Any) -> RequestRecord:
        body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, **fields}
        return await self._send("/v1/completions", body)

    async def chat(self, question: str, num_tokens: int, **sampling: float) -> RequestRecord:
        return await self.talk([{"role": "user", "content": question}], num_tokens, **sampling)

    async def talk(self, messages: list[dict[str, str]], num_tokens: int, **fields: Any) -> RequestRecord:
        return await self._send("/v1/chat/completions", {"messages": messages, "max_tokens": num_tokens, **fields})

    async def _send(self, path: str, body: dict[str, Any]) -> RequestRecord:
        body = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}, **body}
        record = await self._client.send(path, msgspec.json.encode(body))
        if not record.ok or record.first_token_s is None:
            raise RuntimeError(f"{self.server.name}: {record.error or 'no text came'}")
        return record

    async def aclose(self) -> None:
        await self._client.aclose()


def ms_per_token(record: RequestRecord) -> float:
    """From usage when the server gave it, else one token a piece."""
    gaps = record.gaps_ms()
    return record.token_ms or sum(gaps) / max(len(gaps), 1)
