"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass

import msgspec
from starlette.types import Receive, Scope, Send

from twinpath.api.chat_chunks import ChatChunks
from twinpath.api.chat_turn import open_turns
from twinpath.api.client_watch import ClientWatch
from twinpath.api.exchange import Exchange
from twinpath.api.generation import Door, answer_json, answer_stream, together
from twinpath.api.logprobs import chat_logprobs
from twinpath.api.ports import Tokenizer
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
            call = ChatCall(f"chatcmpl-{exchange.nonce}", exchange, client)
            turns = await open_turns(door, scope, fields, request_id=call.id)
            if fields.stream:
                await self._stream(call, turns, fields.stream_options or StreamOptions())
            else:
                await self._whole(call, turns)

    def _stream(self, call: ChatCall, turns: Sequence[Turn], options: StreamOptions) -> Coroutine[None, None, None]:
        choices = [ChatChunks.of(call.id, index, turn, self._door, options) for index, turn in enumerate(turns)]
        stream = EventStream(call.client, b"".join(chunks.role() for chunks in choices))

        async def run_one(chunks: ChatChunks) -> None:
            async def emit(piece: Piece) -> None:
                if chunk := chunks.piece(piece):
                    await stream.write(chunk)
                elif not stream.started:
                    await stream.write(b"")  # the role chunk

            await self._door.run(chunks.turn, emit)
            if len(choices) > 1:
                await stream.write(chunks.finish())

        async def work() -> bytes:
            await together([run_one(chunks) for chunks in choices])
            call.exchange.reason = turns[0].finish_reason
            last = choices[0].finish() if len(choices) == 1 else b""
            return last + choices[0].usage([turn.stats.usage for turn in turns])

        return answer_stream(call.exchange, stream, work)

    async def _whole(self, call: ChatCall, turns: Sequence[Turn]) -> None:
        kept = [Kept(turn) for turn in turns]
        await together([self._door.run(choice.turn, choice.emit) for choice in kept])
        call.exchange.reason = turns[0].finish_reason
        num_scores = sum(len(choice.logprobs) * (1 + (choice.num_top or 0)) for choice in kept)
        body = await self._door.offload.run(num_scores, lambda: self._encode(call, kept))
        await answer_json(call.client, body)

    def _encode(self, call: ChatCall, kept: Sequence[Kept]) -> bytes:
        answer = ChatCompletion(
            id=call.id,
            created=int(time.time()),
            model=self._door.model_name,
            choices=[choice.whole(index, self._door.text.tokenizer) for index, choice in enumerate(kept)],
            usage=UsageBody.of([choice.turn.stats.usage for choice in kept]),
        )
        return encode(answer)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One call of the endpoint: its id, and who waits for it."""

    id: str
    exchange: Exchange
    client: ClientWatch


class Kept:
    """One choice of a whole answer, kept until all are there."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.num_top = turn.request.sampling.logprobs
        self.logprobs: list[TokenLogprob] = []
        self._parts: list[Part] = []

    async def emit(self, piece: Piece) -> None:
        self._parts.extend(piece.parts)
        self.logprobs.extend(piece.logprobs or ())

    def whole(self, index: int, tokenizer: Tokenizer) -> ChatChoice:
        """The finished choice."""
        scores = None
        if self.num_top is not None:
            scores = ChatLogprobs(content=chat_logprobs(tokenizer, self.logprobs, self.num_top))
        return ChatChoice(
            index=index,
            message=AssistantMessage.of(Message.of(self._parts)),
            logprobs=scores,
            finish_reason=self.turn.finish_reason,
        )
