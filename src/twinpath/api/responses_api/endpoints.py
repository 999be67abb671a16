"""POST /v1/responses; GET and DELETE /v1/responses/{id}."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from twinpath.api.blocks import Blocks, Change, Grown
from twinpath.api.chat_turn import open_turn
from twinpath.api.client_watch import ClientWatch
from twinpath.api.exchange import Exchange
from twinpath.api.generation import Door, answer_json, answer_stream, new_id
from twinpath.api.logprobs import chat_logprobs
from twinpath.api.normalize import check_served
from twinpath.api.plain_routes import respond
from twinpath.api.responses import ChatLogprob
from twinpath.api.responses_api.answers import (
    DeletedResponse,
    Status,
    begun_response,
    finish_response,
    replayed,
)
from twinpath.api.responses_api.convert import NAMES, new_items, to_chat
from twinpath.api.responses_api.events import ResponseEvents
from twinpath.api.responses_api.schemas import InputItem, ResponsesRequest
from twinpath.api.responses_api.store import ResponseStore
from twinpath.api.sse import EventStream, Manners, encode
from twinpath.api.turn import Piece, Turn

_decoder = msgspec.json.Decoder(ResponsesRequest)


class Responses:
    """POST /v1/responses, an ASGI app."""

    def __init__(self, door: Door, store: ResponseStore) -> None:
        self._door = door
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, exchange = self._door, Exchange.of(scope)
        fields = await door.decode(scope, receive, _decoder)
        door.check_model(fields.model)
        items = new_items(fields)
        if fields.previous_response_id:
            items = [*self._store.conversation(exchange.caller.key_hash, fields.previous_response_id), *items]
        chat = await door.offload.run(exchange.num_body_bytes // 10, lambda: to_chat(fields, items))
        check_served(chat)
        async with door.watch(receive, send) as client:
            with NAMES.in_errors():
                turn = await open_turn(door, scope, chat, request_id=new_id("resp", "_"))
            events = ResponseEvents(begun_response(fields, turn, door.model_name))
            await self._answer(Answering(turn, events, items), exchange, client, streams=bool(fields.stream))

    async def _answer(self, answering: Answering, exchange: Exchange, client: ClientWatch, *, streams: bool) -> None:
        """Whole answers are put together by the same events, unsent: so that both agree."""
        turn, events = answering.turn, answering.events
        stream = EventStream(client, b"", Manners(done=b"", failed=events.fail)) if streams else None

        async def emit(piece: Piece) -> None:
            chunk = events.begin() + self._render(answering, piece)
            if stream is not None and chunk:
                await stream.write(chunk)

        async def work() -> bytes:
            with NAMES.in_errors():
                await self._door.run(turn, emit)
            exchange.reason = turn.finish_reason
            status: Status = "incomplete" if turn.finish_reason == "length" else "completed"
            chunk = events.begin() + answering.render(answering.blocks.finish(), [], status)
            finish_response(events.body, turn, events.output)
            self._keep(exchange, answering)
            return chunk + events.finish()

        if stream is not None:
            await answer_stream(exchange, stream, work)
        else:
            await work()
            await answer_json(client, encode(events.body))

    def _render(self, answering: Answering, piece: Piece) -> bytes:
        logprobs: list[ChatLogprob] = []
        num_top = answering.turn.request.sampling.logprobs
        if num_top is not None and piece.logprobs:
            logprobs = chat_logprobs(self._door.text.tokenizer, piece.logprobs, num_top)
        changes = [change for part in piece.parts for change in answering.blocks.push(part)]
        return answering.render(changes, logprobs, "completed")

    def _keep(self, exchange: Exchange, answering: Answering) -> None:
        body = answering.events.body
        if body.store:
            items = [*answering.items, *map(replayed, body.output)]
            self._store.put(exchange.caller.key_hash, body.id, encode(body), items)


class Answering:
    """One response on its way: its generation, the conversation before it, and what is known of its output."""

    def __init__(self, turn: Turn, events: ResponseEvents, items: list[InputItem]) -> None:
        self.turn = turn
        self.events = events
        self.items = items
        self.blocks = Blocks()
        #: Of tokens whose text is held back; they go with the text that comes next.
        self._held: list[ChatLogprob] = []

    def render(self, changes: list[Change], logprobs: list[ChatLogprob], status: Status) -> bytes:
        """The changes as events. Log-probabilities go with the first text among them."""
        self._held += logprobs
        chunks = []
        for change in changes:
            takes = isinstance(change, Grown) and change.block.kind == "text"
            chunks.append(self.events.change(change, self._held if takes else [], status))
            if takes:
                self._held = []
        return b"".join(chunks)


class StoredResponses:
    """GET and DELETE /v1/responses/{id}."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller, response_id = Exchange.of(scope).caller.key_hash, scope["path_params"]["id"]
        if scope["method"] == "DELETE":
            self._store.delete(caller, response_id)
            await respond(send, encode(DeletedResponse(id=response_id)))
        else:
            await respond(send, self._store.body(caller, response_id))
