"""What both generation endpoints do alike: read, check, admit, run, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from os import urandom
from time import monotonic
from typing import TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from twinpath.api.body import check_content_type, decode_body, read_body
from twinpath.api.client_watch import ClientWatch
from twinpath.api.deadlines import ServiceDesk
from twinpath.api.exchange import Exchange
from twinpath.api.grammars import Grammars
from twinpath.api.identity import session_name
from twinpath.api.normalize import SamplingDoor, check_prompt_fits, check_served
from twinpath.api.offload import INLINE_SIZE, Offload
from twinpath.api.ports import Detokenizer, Replica, TextModel
from twinpath.api.prompts import PromptEncoder
from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest, SamplingFields
from twinpath.api.sse import EventStream
from twinpath.api.transcript import Transcript
from twinpath.api.turn import Emit, Turn
from twinpath.config import HttpConfig
from twinpath.errors import ModelNotFound, Overloaded, RequestError
from twinpath.text import StopSet
from twinpath.text.answer import AnswerParser
from twinpath.types import Grammar, Request, SamplingParams

B = TypeVar("B")
F = TypeVar("F", ChatCompletionRequest, CompletionRequest)
JSON_HEADERS = [(b"content-type", b"application/json")]
#: A client that stops in the middle of its body holds a connection; this ends it.
BODY_IDLE_TIMEOUT_S = 60.0
#: Decoding is a hundred times faster than encoding prompts.
INLINE_BODY_BYTES = 100 * INLINE_SIZE


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of a generation endpoint: where it came in, and what it wants."""

    scope: Scope
    exchange: Exchange
    fields: SamplingFields
    #: Shared by all prompts of the call.
    stops: StopSet
    #: What every answer must be a word of; checked.
    grammar: Grammar | None = None
    #: The field of the body that asks for it.
    grammar_field: str = ""


@dataclass(frozen=True, slots=True)
class Door:
    """The parts an endpoint works with. One per app."""

    model_name: str
    http: HttpConfig
    text: TextModel
    replica: Replica
    sampling: SamplingDoor
    prompts: PromptEncoder
    offload: Offload
    desk: ServiceDesk
    grammars: Grammars

    def watch(self, receive: Receive, send: Send) -> ClientWatch:
        return ClientWatch(
            receive, send, keepalive_s=self.http.sse_keepalive_s, write_timeout_s=self.http.write_timeout_s
        )

    async def read(self, scope: Scope, receive: Receive, decoder: msgspec.json.Decoder[F]) -> F:
        """The body as fields that this server can serve.

        Raises: RequestError, ClientGone.
        """
        fields = await self.decode(scope, receive, decoder)
        self.check_model(fields.model)
        check_served(fields)
        return fields

    async def decode(self, scope: Scope, receive: Receive, decoder: msgspec.json.Decoder[B]) -> B:
        """The body as it is, noted in the exchange.

        Raises: RequestError, ClientGone.
        """
        check_content_type(scope)
        body = await read_body(scope, receive, limit_bytes=self.http.max_body_bytes, idle_timeout_s=BODY_IDLE_TIMEOUT_S)
        exchange = Exchange.of(scope)
        exchange.body_at, exchange.num_body_bytes = monotonic(), len(body)
        if len(body) <= INLINE_BODY_BYTES:
            return decode_body(body, decoder)
        return await self.offload.run(INLINE_SIZE + 1, lambda: decode_body(body, decoder))

    def check_model(self, name: str | None) -> None:
        """Raises: ModelNotFound."""
        if name and name != self.model_name:
            raise ModelNotFound(f"The model '{name[:200]}' is not served here; see /v1/models.", param="model")

    def room_after(self, prompt_ids: Sequence[int], param: str) -> int:
        """Tokens that may follow the prompt.

        Raises: ContextOverflow; Overloaded while the model is not loaded.
        """
        info = self.replica.info
        if info is None:
            raise Overloaded("The model is still loading.", status=503, retry_after_s=5)
        return check_prompt_fits(len(prompt_ids), info.max_model_len, param)

    def turn(
        self,
        ask: Ask,
        prompt_ids: list[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        parser: AnswerParser | None = None,
        follows: str = "",
    ) -> Turn:
        """A generation that is ready to run, noted in the exchange. `parser`: None where all text is content.
        `follows`: id of the generation that computes the same prompt first."""
        caller, name = ask.exchange.caller, session_name(ask.scope, ask.fields)
        service = self.desk.service(ask.scope, caller)
        request = Request(
            request_id=request_id,
            prompt_ids=prompt_ids,
            sampling=sampling,
            grammar=ask.grammar,
            follows=follows,
            cache_salt=caller.cache_salt(ask.fields.cache_salt),
            session=caller.session_key(name) if name else "",
            session_name=name,
            tenant=caller.key_hash,
            arrival_s=ask.exchange.body_at,
            class_name=service.class_name,
            ttft_target_ms=service.ttft_ms,
            tpot_target_ms=service.tpot_ms,
            weight=service.weight,
            priority=int(ask.fields.priority or 0),
        )
        turn = Turn(request, lambda: self._transcript(ask, sampling, parser), service, ask.grammar_field)
        ask.exchange.turns.append(turn.stats)
        ask.exchange.engine_ids.append(request_id)
        return turn

    def _transcript(self, ask: Ask, sampling: SamplingParams, parser: AnswerParser | None) -> Transcript:
        return Transcript(
            self._detokenizer(ask, parser),
            ask.stops,
            parser,
            end_ids=sampling.stop_token_ids,
            min_tokens=sampling.min_tokens,
        )

    def _detokenizer(self, ask: Ask, parser: AnswerParser | None) -> Detokenizer:
        if parser is not None:
            return self.text.answer_detokenizer()
        return self.text.tokenizer.detokenizer(continuation=isinstance(ask.fields, CompletionRequest))

    def run(self, turn: Turn, emit: Emit) -> Coroutine[None, None, None]:
        """Run one turn to its end.

        Raises: RequestError.
        """
        return turn.run(self.replica.generate(turn.request), emit)


def together(works: Sequence[Coroutine[None, None, None]]) -> Awaitable[None]:
    """Run several side by side; the first failure ends all.

    Raises: RequestError.
    """
    return works[0] if len(works) == 1 else _side_by_side(works)


async def _side_by_side(works: Sequence[Coroutine[None, None, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except* RequestError as errors:
        raise _first(errors) from None


async def answer_stream(exchange: Exchange, stream: EventStream, work: Callable[[], Awaitable[bytes]]) -> None:
    """Run `work` (which writes to the stream and returns the last chunks) and end the stream in one of its two ways.

    Raises: RequestError while nothing was sent: then it is a plain HTTP error.
    """
    try:
        last_chunks = await work()
    except RequestError as error:
        if not stream.started:
            raise
        exchange.reason = f"error:{error.code or error.status}"
        await stream.fail(error)
    except asyncio.CancelledError:
        if stream.started and not stream.client_gone:
            exchange.reason = "shutdown"
            await stream.fail(shutting_down())
        raise
    else:
        await stream.finish(last_chunks)


async def answer_json(client: ClientWatch, body: bytes) -> None:
    """A whole answer."""
    headers = [*JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    await client.send({"type": "http.response.start", "status": 200, "headers": headers})
    await client.send({"type": "http.response.body", "body": body, "more_body": False})


def shutting_down() -> RequestError:
    return Overloaded("The server is shutting down.", status=503, code="shutting_down", retry_after_s=5)


def new_id(prefix: str, separator: str = "-") -> str:
    """An id of our own: what the client sends never reaches the engine as an id."""
    return f"{prefix}{separator}{urandom(16).hex()}"


def _first(errors: BaseExceptionGroup[RequestError]) -> RequestError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RequestError)
    return error
