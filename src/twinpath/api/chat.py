"""POST /v1/chat/completions."""

from __future__ import annotations

import time

import msgspec
from starlette.types import Receive, Scope, Send

from twinpath.api.chat_chunks import ChatChunks
from twinpath.api.chat_turn import open_turn
from twinpath.api.client_watch import ClientWatch
from twinpath.api.exchange import Exchange
from twinpath.api.generation import Door, answer_json, answer_stream
from twinpath.api.logprobs import chat_logprobs
from twinpath.api.responses import AssistantMessage, ChatChoice, ChatCompletion, ChatLogprobs, UsageBody
from twinpath.api.schemas import ChatCompletionRequest, StreamOptions
from twinpath.api.sse import EventStream, encode
from twinpath.api.turn import Piece, Turn
from twinpath.text.answer import Message, Part
from twinpath.types import TokenLogprob

_decoder = msgspec.json.Decoder(ChatCompletionRequest)


class ChatCompletions:
    """The endpoint, an ASGI app."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, exchange = self._door, Exchange.of(scope)
        fields = await door.read(scope, receive, _decoder)
        async with door.watch(receive, send) as client:
            turn = await open_turn(door, scope, fields)
            if fields.stream:
                await self._stream(exchange, client, turn, fields.stream_options or StreamOptions())
            else:
                await self._whole(exchange, client, turn)

    async def _stream(self, exchange: Exchange, client: ClientWatch, turn: Turn, options: StreamOptions) -> None:
        chunks = ChatChunks.of(turn, self._door, options)
        stream = EventStream(client, chunks.role())

        async def emit(piece: Piece) -> None:
            if chunk := chunks.piece(piece):
                await stream.write(chunk)
            elif not stream.started:
                await stream.write(b"")  # the role chunk

        async def work() -> bytes:
            await self._door.run(turn, emit)
            exchange.reason = turn.finish_reason
            return chunks.last()

        await answer_stream(exchange, stream, work)

    async def _whole(self, exchange: Exchange, client: ClientWatch, turn: Turn) -> None:
        parts: list[Part] = []
        logprobs: list[TokenLogprob] = []

        async def emit(piece: Piece) -> None:
            parts.extend(piece.parts)
            logprobs.extend(piece.logprobs or ())

        await self._door.run(turn, emit)
        exchange.reason = turn.finish_reason
        num_scores = len(logprobs) * (1 + (turn.request.sampling.logprobs or 0))
        body = await self._door.offload.run(num_scores, lambda: self._encode(turn, Message.of(parts), logprobs))
        await answer_json(client, body)

    def _encode(self, turn: Turn, message: Message, logprobs: list[TokenLogprob]) -> bytes:
        num_top = turn.request.sampling.logprobs
        entries = None if num_top is None else chat_logprobs(self._door.text.tokenizer, logprobs, num_top)
        choice = ChatChoice(
            index=0,
            message=AssistantMessage.of(message),
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
