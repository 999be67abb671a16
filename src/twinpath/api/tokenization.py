"""POST /tokenize and /detokenize, in vLLM's shapes: what a prompt becomes, for clients that count or cut themselves."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct, field
from starlette.types import Receive, Scope, Send

from twinpath.api.chat_turn import open_prompt
from twinpath.api.exchange import Exchange
from twinpath.api.generation import Door, answer_json
from twinpath.api.logprobs import token_text
from twinpath.api.raw_fields import template_kwargs_in
from twinpath.api.schemas import MAX_MESSAGES, ChatCompletionRequest, ChatMessage, Count
from twinpath.api.sse import encode
from twinpath.errors import InvalidRequest
from twinpath.text import check_can_fit


def _raw() -> Raw:
    return field(default_factory=Raw)


class TokenizeRequest(Struct, kw_only=True):
    """Body of POST /tokenize: a raw prompt, or a conversation as the chat endpoint would render it."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    #: For `prompt`: BOS in front where the model wants one. A chat template places its own.
    add_special_tokens: bool | None = None
    #: For `messages`.
    add_generation_prompt: bool | None = None
    tools: Raw = _raw()
    chat_template_kwargs: Raw = _raw()
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """Body of POST /detokenize."""

    tokens: list[Count]
    model: str | None = None


class Tokenized(Struct, kw_only=True):
    """`max_model_len` is the window of the model's own."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Struct, kw_only=True):
    prompt: str


_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)


class Tokenize:
    """The endpoint, an ASGI app."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, exchange = self._door, Exchange.of(scope)
        fields = await door.decode(scope, receive, _tokenize_decoder)
        door.check_model(fields.model)
        async with door.watch(receive, send) as client:
            token_ids = await self._encode(fields, exchange)
            body = await door.offload.run(len(token_ids), lambda: self._body(fields, token_ids))
            await answer_json(client, body)

    async def _encode(self, fields: TokenizeRequest, exchange: Exchange) -> list[int]:
        if (fields.prompt is None) == (fields.messages is None):
            raise InvalidRequest("One of 'prompt' and 'messages' is required.", param="prompt")
        if fields.messages is not None:
            prompt_ids, _ = await open_prompt(self._door, exchange, _as_chat(fields, fields.messages))
            return prompt_ids
        prompt = fields.prompt or ""
        check_can_fit(len(prompt), self._door.text.max_model_len, "prompt")
        tokenizer = self._door.text.tokenizer
        if fields.add_special_tokens is False:
            return await self._door.offload.run(
                exchange.num_body_bytes, lambda: tokenizer.encode_segments(tokenizer.split_special(prompt))
            )
        return await self._door.offload.run(exchange.num_body_bytes, lambda: tokenizer.encode_prompt(prompt))

    def _body(self, fields: TokenizeRequest, token_ids: list[int]) -> bytes:
        text = self._door.text
        strings = None
        if fields.return_token_strs:
            strings = [token_text(text.tokenizer.token_bytes(token_id)) for token_id in token_ids]
        return encode(
            Tokenized(count=len(token_ids), max_model_len=text.max_model_len, tokens=token_ids, token_strs=strings)
        )


class Detokenize:
    """The endpoint, an ASGI app. Control tokens come as their spelling; a character cut at the end is left out."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._door
        fields = await door.decode(scope, receive, _detokenize_decoder)
        door.check_model(fields.model)
        async with door.watch(receive, send) as client:
            token_ids = door.sampling.check_token_ids(list(fields.tokens), "tokens")
            body = await door.offload.run(len(token_ids), lambda: self._body(token_ids))
            await answer_json(client, body)

    def _body(self, token_ids: list[int]) -> bytes:
        return encode(Detokenized(prompt=self._door.text.tokenizer.detokenizer(skip_special=False).push(token_ids)))


def _as_chat(fields: TokenizeRequest, messages: list[ChatMessage]) -> ChatCompletionRequest:
    chat = ChatCompletionRequest(messages=messages, tools=fields.tools)
    kwargs: dict[str, Any] = template_kwargs_in(fields.chat_template_kwargs) or {}
    if fields.add_generation_prompt is not None:
        kwargs["add_generation_prompt"] = fields.add_generation_prompt
    chat.chat_template_kwargs = Raw(msgspec.json.encode(kwargs))
    return chat
