"""The real `openai` client against a live server: what its users do, and what its error classes say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from api.live_server import MODEL, LiveServer, Setup, live_server
from twinpath.engine.scripted import ScriptedShape

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", timeout=10) as client:
        yield client


@pytest.fixture
async def async_client(server: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", timeout=10) as client:
        yield client


def test_chat_with_no_sampling_field(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == "Paris is the capital."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_streamed_chat_with_usage(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "Paris is the capital."
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 22
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


async def test_the_accumulating_stream_helper(async_client: openai.AsyncOpenAI) -> None:
    async with async_client.chat.completions.stream(model=MODEL, messages=HELLO, logprobs=True) as stream:
        async for _ in stream:
            pass
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "Paris is the capital."
    assert completion.choices[0].logprobs is not None and completion.choices[0].logprobs.content is not None
    assert len(completion.choices[0].logprobs.content) == 22


def test_legacy_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["[abcdef]", "x"], max_tokens=3, logprobs=1, echo=True)
    assert [choice.text for choice in answer.choices] == ["[abcdef]abc", "xPar"]
    streamed = client.completions.create(model=MODEL, prompt="x", stream=True)
    assert "".join(choice.text for chunk in streamed for choice in chunk.choices) == "Paris is the cap"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


def test_extra_body_and_request_id(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, extra_body={"top_k": 3, "min_p": 0.1}, extra_headers={"x-request-id": "mine-1"}
    )
    assert answer._request_id == "mine-1"


def test_user_errors_are_not_retried(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)
    assert refused.value.param == "temperature"
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=HELLO, stream=True)
    assert unknown.value.code == "model_not_found"


def test_context_overflow_is_recognisable(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "p" * 9000}], stream=True)
    assert refused.value.code == "context_length_exceeded"


def test_a_failure_in_a_stream_raises(client: openai.OpenAI) -> None:
    text = ""
    with pytest.raises(openai.APIError, match="scripted failure"):
        for chunk in client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "[fails at 2]"}], stream=True
        ):
            text += chunk.choices[0].delta.content or ""
    assert text == "ab"


def test_wrong_keys_raise_authentication_errors() -> None:
    with live_server(Setup(http={"api_keys": ("sk-right",)}, shape=ScriptedShape())) as server:
        wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-wrong")
        with wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-right") as client:
            assert client.chat.completions.create(model=MODEL, messages=HELLO).choices


async def test_leaving_a_stream_cancels_it(async_client: openai.AsyncOpenAI, server: LiveServer) -> None:
    stream = await async_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "[long]"}], stream=True, max_tokens=4000
    )
    async for _ in stream:
        break
    await stream.close()
    server.wait_until(server.is_idle, "cancelled", 2)
