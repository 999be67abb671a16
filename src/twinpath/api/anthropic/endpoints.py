"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from twinpath.api.anthropic.answers import (
    MANNERS,
    TokenCount,
    change_event,
    message_end,
    message_start,
    whole_message,
)
from twinpath.api.anthropic.convert import names, to_chat
from twinpath.api.anthropic.schemas import CountTokensRequest, MessagesRequest
from twinpath.api.blocks import Blocks
from twinpath.api.chat_turn import open_prompt, open_turn
from twinpath.api.client_watch import ClientWatch
from twinpath.api.exchange import Exchange
from twinpath.api.field_names import FieldNames
from twinpath.api.generation import Door, answer_json, answer_stream, new_id
from twinpath.api.normalize import check_served
from twinpath.api.sse import EventStream, encode
from twinpath.api.turn import Piece, Turn

_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(CountTokensRequest)


class Messages:
    """POST /v1/messages, an ASGI app."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, exchange = self._door, Exchange.of(scope)
        exchange.headers.append((b"request-id", exchange.request_id.encode()))
        fields = await door.decode(scope, receive, _decoder)
        door.check_model(fields.model)
        chat = await door.offload.run(exchange.num_body_bytes // 10, lambda: to_chat(fields))
        check_served(chat)
        own_names = names(fields)
        async with door.watch(receive, send) as client:
            with own_names.in_errors():
                turn = await open_turn(door, scope, chat, request_id=new_id("msg", "_"))
            run = self._stream if fields.stream else self._whole
            await run(exchange, client, turn, own_names)

    async def _stream(self, exchange: Exchange, client: ClientWatch, turn: Turn, own_names: FieldNames) -> None:
        stream, blocks = EventStream(client, b"", MANNERS), Blocks()
        begun = False

        def begin() -> bytes:
            nonlocal begun
            if begun:
                return b""
            begun = True
            return message_start(turn, self._door.model_name)

        async def emit(piece: Piece) -> None:
            changes = [change for part in piece.parts for change in blocks.push(part)]
            chunk = begin() + b"".join(map(change_event, changes))
            if chunk:
                await stream.write(chunk)

        async def work() -> bytes:
            with own_names.in_errors():
                await self._door.run(turn, emit)
            exchange.reason = turn.finish_reason
            return begin() + b"".join(map(change_event, blocks.finish())) + message_end(turn)

        await answer_stream(exchange, stream, work)

    async def _whole(self, exchange: Exchange, client: ClientWatch, turn: Turn, own_names: FieldNames) -> None:
        blocks = Blocks()

        async def emit(piece: Piece) -> None:
            for part in piece.parts:
                blocks.push(part)

        with own_names.in_errors():
            await self._door.run(turn, emit)
        blocks.finish()
        exchange.reason = turn.finish_reason
        await answer_json(client, encode(whole_message(turn, self._door.model_name, blocks.done)))


class CountTokens:
    """POST /v1/messages/count_tokens: the tokens that the same request's prompt would have."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, exchange = self._door, Exchange.of(scope)
        fields = await door.decode(scope, receive, _count_decoder)
        door.check_model(fields.model)
        chat = await door.offload.run(exchange.num_body_bytes // 10, lambda: to_chat(fields))
        check_served(chat)
        async with door.watch(receive, send) as client:
            with names(fields).in_errors():
                prompt_ids, _ = await open_prompt(door, exchange, chat)
            await answer_json(client, encode(TokenCount(input_tokens=len(prompt_ids))))
