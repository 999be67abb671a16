"""Which thread encodes: long requests leave the event loop free, wherever in the body the length is."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from twinpath.api.normalize import SamplingDoor
from twinpath.api.offload import INLINE_SIZE, Offload
from twinpath.api.prompts import PromptEncoder
from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest
from twinpath.text.byte_model import byte_model
from twinpath.text.text_model import TextModel

LONG = "x" * (INLINE_SIZE + 1)


class Watched:
    """A text model that notes who calls it."""

    def __init__(self) -> None:
        self.model = byte_model()
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        self.threads.add(threading.get_ident())
        return getattr(self.model, name)


@pytest.fixture
async def watched() -> AsyncIterator[tuple[Watched, PromptEncoder]]:
    text = Watched()
    offload = Offload()
    model: TextModel = text.model
    sampling = SamplingDoor({}, model.tokenizer.vocab_size, model.stop_token_ids)
    yield text, PromptEncoder(text, sampling, offload)
    offload.close()


def call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": [call(LONG)]},
        {"messages": [call({"x": LONG})]},
        {"messages": [call("{}")] * 100},
        {"messages": [{"role": "assistant", "reasoning_content": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 200}]},
        {"messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": {"x": LONG}},
    ],
)
async def test_long_conversations_are_encoded_in_a_worker_thread(
    watched: tuple[Watched, PromptEncoder], body: dict[str, Any]
) -> None:
    text, prompts = watched
    encoded = msgspec.json.encode(body)
    fields = msgspec.json.decode(encoded, type=ChatCompletionRequest)
    assert await prompts.chat(fields, len(encoded))
    assert text.threads and threading.get_ident() not in text.threads


async def test_long_prompts_are_encoded_in_a_worker_thread(watched: tuple[Watched, PromptEncoder]) -> None:
    text, prompts = watched
    encoded = msgspec.json.encode({"prompt": ["x" * 100] * 100})
    fields = msgspec.json.decode(encoded, type=CompletionRequest)
    assert await prompts.completion(fields, len(encoded)) == [[ord("x")] * 100] * 100
    assert text.threads and threading.get_ident() not in text.threads


async def test_short_ones_are_encoded_in_place(watched: tuple[Watched, PromptEncoder]) -> None:
    text, prompts = watched
    fields = msgspec.convert({"messages": [{"role": "user", "content": "hi"}]}, ChatCompletionRequest)
    assert await prompts.chat(fields, 50)
    assert text.threads == {threading.get_ident()}
