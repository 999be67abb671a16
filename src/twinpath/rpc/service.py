"""The Generation service: Generate, Chat and Abort."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from time import monotonic
from typing import Any

from twinpath.api.chat_turn import open_turn
from twinpath.api.choices import open_choices
from twinpath.api.generation import Ask, Door, new_id, together
from twinpath.api.normalize import check_served, stops_of
from twinpath.api.turn import Piece, Turn
from twinpath.errors import InvalidRequest
from twinpath.rpc import wire
from twinpath.rpc.answers import chat_response, finish, generate_response
from twinpath.rpc.bodies import Conversation, completion_fields
from twinpath.rpc.calls import Call, Calls, Context
from twinpath.rpc.packing import Packer
from twinpath.text.answer import Message, Part

MAX_PACKING_MS = 1000
GENERATE, CHAT = f"/{wire.SERVICE}/Generate", f"/{wire.SERVICE}/Chat"


class GenerationService:
    """Handlers of the three methods."""

    def __init__(self, door: Door, calls: Calls) -> None:
        self._door = door
        self._calls = calls

    async def generate(self, request: Any, context: Context) -> None:
        """One prompt, `n` answers, side by side in one stream."""
        async with self._calls.call(context, GENERATE) as call:
            with self._calls.know_as(call, request.request_id):
                turns = await self._open(call, request)
                packer = Packer[tuple[int, Piece]](
                    lambda batch: _write_generated(context, batch), wait_s=_wait_s(request.packing)
                )

                async def run_one(index: int, turn: Turn) -> None:
                    async def emit(piece: Piece) -> None:
                        await packer.put((index, piece))

                    await self._door.run(turn, emit)

                await _side_by_side(packer, [run_one(index, turn) for index, turn in enumerate(turns)])
                for index, turn in enumerate(turns):
                    await context.write(wire.GenerateResponse(index=index, finish=finish(turn)))
                call.exchange.reason = turns[0].finish_reason

    async def chat(self, requests: AsyncIterator[Any], context: Context) -> None:
        """Turn after turn on one stream; the conversation's KV is found again in the prefix cache."""
        async with self._calls.call(context, CHAT) as call:
            conversation = Conversation()
            # One session for as long as the stream lives, unless the client named its own.
            session = (b"x-session-id", call.exchange.request_id.encode())
            call.scope["headers"] = [*call.scope["headers"], session]
            async for request in requests:
                call.exchange.body_at = monotonic()
                with self._calls.know_as(call, request.request_id):
                    await self._one_turn(call, context, conversation, request)

    async def abort(self, request: Any, context: Context) -> Any:
        """Idempotent: an unknown id, or one that has ended, is no error."""
        return wire.AbortResponse(num_aborted=self._calls.abort(context, request.request_id))

    async def _open(self, call: Call, request: Any) -> list[Turn]:
        door, exchange = self._door, call.exchange
        exchange.num_body_bytes = request.ByteSize()
        fields = completion_fields(request)
        door.check_model(fields.model)
        check_served(fields)
        ask = Ask(call.scope, exchange, fields, stops_of(fields))
        [prompt_ids] = await door.prompts.completion(fields, exchange.num_body_bytes)
        num_top = None if fields.logprobs is None else int(fields.logprobs)
        sampling = door.sampling.params(fields, room=door.room_after(prompt_ids, "prompt"), logprobs=num_top)
        return open_choices(door, ask, prompt_ids, sampling, call_id=new_id("rpc"))

    async def _one_turn(self, call: Call, context: Context, conversation: Conversation, request: Any) -> None:
        door = self._door
        call.exchange.num_body_bytes += request.ByteSize()
        fields = conversation.chat_fields(request)
        door.check_model(fields.model)
        check_served(fields)
        turn = await open_turn(door, call.scope, fields, request_id=new_id("rpc"))
        parts: list[Part] = []
        packer = Packer[Piece](lambda batch: _write_chat(context, batch), wait_s=_wait_s(request.packing))

        async def emit(piece: Piece) -> None:
            parts.extend(piece.parts)
            await packer.put(piece)

        await _side_by_side(packer, [door.run(turn, emit)])
        message = Message.of(parts)
        conversation.answered(
            message.content, message.reasoning, [(c.call_id, c.name, c.arguments) for c in message.calls]
        )
        call.exchange.reason = turn.finish_reason
        await context.write(wire.ChatResponse(finish=finish(turn)))


async def _side_by_side(packer: Packer[Any], works: list[Coroutine[None, None, None]]) -> None:
    """Run generations into a packer until all has been written; the first failure ends all.

    Raises: RequestError.
    """

    async def produce() -> None:
        try:
            await together(works)
        finally:
            packer.close()

    await together([produce(), packer.run()])


async def _write_generated(context: Context, batch: list[tuple[int, Piece]]) -> None:
    for index in dict.fromkeys(index for index, _ in batch):
        await context.write(generate_response(index, [piece for at, piece in batch if at == index]))


async def _write_chat(context: Context, batch: list[Piece]) -> None:
    response = chat_response(batch)
    if response.parts or response.logprobs:
        await context.write(response)


def _wait_s(packing: Any) -> float:
    if packing.wait_ms > MAX_PACKING_MS:
        raise InvalidRequest(
            f"'packing.wait_ms' is {packing.wait_ms}; at most {MAX_PACKING_MS} are accepted.", param="packing.wait_ms"
        )
    return float(packing.wait_ms) / 1e3
