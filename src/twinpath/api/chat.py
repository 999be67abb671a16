"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec
from starlette.types import Receive, Scope, Send

from twinpath.api.client_watch import ClientWatch
from twinpath.api.exchange import Exchange
from twinpath.api.generation import Ask, Door, answer_json, answer_stream, new_id
from twinpath.api.logprobs import chat_logprobs
from twinpath.api.normalize import logprobs_of, stops_of
from twinpath.api.ports import Tokenizer
from twinpath.api.responses import AssistantMessage, ChatChoice, ChatCompletion, ChatLogprobs, UsageBody
from twinpath.api.schemas import ChatCompletionRequest, StreamOptions
from twinpath.api.sse import EventStream, encode, quoted
from twinpath.api.turn import Piece, Turn
from twinpath.types import TokenLogprob

_decoder = msgspec.json.Decoder(ChatCompletionRequest)


class ChatCompletions:
    """The endpoint, an ASGI app."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, exchange = self._door, Exchange.of(scope)
        fields = await door.read(scope, receive, _decoder)
        num_top, stops = logprobs_of(fields), stops_of(fields)
        async with door.watch(receive, send) as client:
            prompt_ids = await door.prompts.chat(fields, exchange.num_body_bytes)
            room = door.room_after(prompt_ids, "messages")
            sampling = door.sampling.params(fields, room=room, logprobs=num_top)
            turn = door.turn(Ask(scope, exchange, fields, stops), prompt_ids, sampling, request_id=new_id("chatcmpl"))
            if fields.stream:
                await self._stream(exchange, client, turn, fields.stream_options or StreamOptions())
            else:
                await self._whole(exchange, client, turn)

    async def _stream(self, exchange: Exchange, client: ClientWatch, turn: Turn, options: StreamOptions) -> None:
        chunks = ChatChunks.of(turn, self._door, options)
        stream = EventStream(client, chunks.role())

        async def emit(piece: Piece) -> None:
            if piece.text or piece.logprobs:
                await stream.write(chunks.piece(piece))
            elif not stream.started:
                await stream.write(b"")  # the role chunk

        async def work() -> bytes:
            await self._door.run(turn, emit)
            exchange.reason = turn.finish_reason
            return chunks.last()

        await answer_stream(exchange, stream, work)

    async def _whole(self, exchange: Exchange, client: ClientWatch, turn: Turn) -> None:
        texts: list[str] = []
        logprobs: list[TokenLogprob] = []

        async def emit(piece: Piece) -> None:
            texts.append(piece.text)
            logprobs.extend(piece.logprobs or ())

        await self._door.run(turn, emit)
        exchange.reason = turn.finish_reason
        num_scores = len(logprobs) * (1 + (turn.request.sampling.logprobs or 0))
        body = await self._door.offload.run(num_scores, lambda: self._encode(turn, "".join(texts), logprobs))
        await answer_json(client, body)

    def _encode(self, turn: Turn, text: str, logprobs: list[TokenLogprob]) -> bytes:
        num_top = turn.request.sampling.logprobs
        entries = None if num_top is None else chat_logprobs(self._door.text.tokenizer, logprobs, num_top)
        choice = ChatChoice(
            index=0,
            message=AssistantMessage(content=text),
            logprobs=None if entries is None else ChatLogprobs(content=entries),
            finish_reason=turn.finish_reason,
        )
        answer = ChatCompletion(
            id=turn.request.request_id,
            created=int(time.time()),
            model=self._door.model_name,
            choices=[choice],
            usage=UsageBody.of([turn.stats.usage]),
        )
        return encode(answer)


@dataclass(slots=True)
class ChatChunks:
    """Chunks of one chat stream. What stays the same is encoded once; a token costs a string escape and two joins."""

    turn: Turn
    tokenizer: Tokenizer
    include_usage: bool
    continuous_usage: bool
    _head: bytes
    _content_head: bytes
    _plain_tail: bytes

    @staticmethod
    def of(turn: Turn, door: Door, options: StreamOptions) -> ChatChunks:
        head = b'data: {"id":%s,"object":"chat.completion.chunk","created":%d,"model":%s,' % (
            quoted(turn.request.request_id),
            int(time.time()),
            quoted(door.model_name),
        )
        include_usage = bool(options.include_usage)
        return ChatChunks(
            turn=turn,
            tokenizer=door.text.tokenizer,
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options.continuous_usage_stats),
            _head=head,
            _content_head=head + b'"choices":[{"index":0,"delta":{"content":',
            _plain_tail=b'},"logprobs":null,"finish_reason":null}]'
            + (b',"usage":null}\n\n' if include_usage else b"}\n\n"),
        )

    def role(self) -> bytes:
        """The first chunk."""
        return self._head + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""' + self._plain_tail

    def piece(self, piece: Piece) -> bytes:
        """A chunk of text, with the log-probabilities of the tokens behind it."""
        if piece.logprobs is None and not self.continuous_usage:
            return self._content_head + quoted(piece.text) + self._plain_tail
        logprobs = b"null"
        if piece.logprobs is not None:
            num_top = self.turn.request.sampling.logprobs or 0
            logprobs = encode(ChatLogprobs(content=chat_logprobs(self.tokenizer, piece.logprobs, num_top)))
        head = self._content_head + quoted(piece.text)
        return head + b'},"logprobs":' + logprobs + b',"finish_reason":null}]' + self._usage_tail(b"}\n\n")

    def last(self) -> bytes:
        """The finish chunk, and the usage chunk when it was asked for."""
        reason = quoted(self.turn.finish_reason)
        chunk = self._head + b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":' + reason + b"}]"
        chunk += self._usage_tail(b"}\n\n")
        if self.include_usage:
            usage = encode(UsageBody.of([self.turn.stats.usage]))
            chunk += self._head + b'"choices":[],"usage":' + usage + b"}\n\n"
        return chunk

    def _usage_tail(self, end: bytes) -> bytes:
        if self.continuous_usage:
            return b',"usage":' + encode(UsageBody.of([self.turn.stats.usage])) + end
        return b',"usage":null' + end if self.include_usage else end
