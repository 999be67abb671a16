"""POST /v1/completions: raw prompts, several per call, the prompt echoed and scored on demand."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from functools import cached_property

import msgspec
from starlette.types import Receive, Scope, Send

from twinpath.api.choices import num_choices, open_choices
from twinpath.api.client_watch import ClientWatch
from twinpath.api.exchange import Exchange
from twinpath.api.generation import Ask, Door, answer_json, answer_stream, together
from twinpath.api.logprobs import LegacyLogprobs
from twinpath.api.normalize import stops_of
from twinpath.api.ports import Tokenizer
from twinpath.api.response_format import answer_grammar
from twinpath.api.responses import Completion, CompletionChoice, LegacyLogprobsBody, UsageBody
from twinpath.api.schemas import CompletionRequest
from twinpath.api.sse import EventStream, encode, quoted
from twinpath.api.turn import Emit, Piece, Turn
from twinpath.types import TokenLogprob, Usage

_decoder = msgspec.json.Decoder(CompletionRequest)


class Completions:
    """The endpoint, an ASGI app."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = await self._door.read(scope, receive, _decoder)
        grammar, grammar_field = await answer_grammar(self._door, fields)
        ask = Ask(scope, Exchange.of(scope), fields, stops_of(fields), grammar, grammar_field)
        call_id = f"cmpl-{ask.exchange.nonce}"
        async with self._door.watch(receive, send) as client:
            prompts = await self._door.prompts.completion(fields, ask.exchange.num_body_bytes)
            num_choices(fields, len(prompts))
            choices: list[Choice] = []
            for index, ids in enumerate(prompts):
                choices += self._choices(ask, fields, f"{call_id}-{index}", ids)
            if fields.stream:
                await self._stream(ask, client, call_id, choices)
            else:
                await self._whole(ask, client, call_id, choices)

    def _choices(self, ask: Ask, fields: CompletionRequest, call_id: str, prompt_ids: list[int]) -> list[Choice]:
        """The answers to one prompt."""
        door = self._door
        num_top = None if fields.logprobs is None else int(fields.logprobs)
        sampling = door.sampling.params(
            fields,
            room=door.room_after(prompt_ids, "prompt"),
            logprobs=num_top,
            prompt_logprobs=num_top if fields.echo else None,
        )
        turns = open_choices(door, ask, prompt_ids, sampling, call_id=call_id)
        return [Choice(turn, door.text.tokenizer, num_top, echo=bool(fields.echo)) for turn in turns]

    def _stream(
        self, ask: Ask, client: ClientWatch, call_id: str, choices: Sequence[Choice]
    ) -> Coroutine[None, None, None]:
        options = ask.fields.stream_options
        chunks = CompletionChunks(
            call_id, self._door.model_name, include_usage=options is not None and bool(options.include_usage)
        )
        stream = EventStream(client, b"")
        client.later(lambda: chunks.head)

        async def run_one(index: int, choice: Choice) -> None:
            async def emit(piece: Piece) -> None:
                if choice.is_plain:
                    text, logprobs = piece.text, None
                else:
                    num_scores = choice.num_scores_of(piece)
                    text, logprobs = await self._door.offload.run(num_scores, lambda: choice.take(piece))
                if text or logprobs is not None:
                    await stream.write(chunks.piece(index, text, logprobs))
                elif not stream.started:
                    await stream.write(b"")

            await self._door.run(choice.turn, emit)
            await stream.write(chunks.finish(index, choice.turn))

        async def work() -> bytes:
            await together([run_one(index, choice) for index, choice in enumerate(choices)])
            ask.exchange.reason = choices[0].turn.finish_reason
            return chunks.usage([choice.turn.stats.usage for choice in choices])

        return answer_stream(ask.exchange, stream, work)

    async def _whole(self, ask: Ask, client: ClientWatch, call_id: str, choices: Sequence[Choice]) -> None:
        pieces: list[list[Piece]] = [[] for _ in choices]
        await together(
            [self._door.run(choice.turn, _collect(kept)) for choice, kept in zip(choices, pieces, strict=True)]
        )
        ask.exchange.reason = choices[0].turn.finish_reason
        num_scores = sum(
            choice.num_scores_of(piece) for choice, kept in zip(choices, pieces, strict=True) for piece in kept
        )
        body = await self._door.offload.run(num_scores, lambda: self._encode(call_id, choices, pieces))
        await answer_json(client, body)

    def _encode(self, call_id: str, choices: Sequence[Choice], pieces: Sequence[list[Piece]]) -> bytes:
        answer = Completion(
            id=call_id,
            created=int(time.time()),
            model=self._door.model_name,
            choices=[
                choice.whole(index, kept) for index, (choice, kept) in enumerate(zip(choices, pieces, strict=True))
            ],
            usage=UsageBody.of([choice.turn.stats.usage for choice in choices]),
        )
        return encode(answer)


def _collect(kept: list[Piece]) -> Emit:
    async def emit(piece: Piece) -> None:
        kept.append(piece)

    return emit


class Choice:
    """One answer of a call. With `echo`, the prompt's text and scores come before the first piece."""

    def __init__(self, turn: Turn, tokenizer: Tokenizer, num_top: int | None, *, echo: bool) -> None:
        self.turn = turn
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._legacy = None if num_top is None else LegacyLogprobs(tokenizer, num_top)
        self._echo = echo

    @property
    def is_plain(self) -> bool:
        """A piece goes to the client as its text, and nothing else."""
        return self._legacy is None and not self._echo

    def num_scores_of(self, piece: Piece) -> int:
        """Log-probabilities that a piece shows."""
        return (len(piece.prompt_logprobs or ()) + len(piece.logprobs or ())) * (1 + (self._num_top or 0))

    def take(self, piece: Piece) -> tuple[str, LegacyLogprobsBody | None]:
        """A piece as it goes to the client."""
        text, scored, first_id = piece.text, list(piece.logprobs or ()), None
        if self._echo:
            self._echo = False
            prompt_ids = self.turn.request.prompt_ids
            text = self._tokenizer.decode(prompt_ids) + text
            scored = [*(piece.prompt_logprobs or ()), *scored]
            first_id = prompt_ids[0]
        if self._legacy is None or (not scored and first_id is None):
            return text, None
        return text, self._legacy.block(scored, first_token_id=first_id)

    def whole(self, index: int, pieces: Sequence[Piece]) -> CompletionChoice:
        """All pieces as one choice."""
        logprobs: list[TokenLogprob] = [item for piece in pieces for item in piece.logprobs or ()]
        prompt_logprobs = next((piece.prompt_logprobs for piece in pieces if piece.prompt_logprobs), None)
        text, block = self.take(Piece("".join(piece.text for piece in pieces), [], logprobs, prompt_logprobs))
        if block is None and self._legacy is not None:
            block = self._legacy.block([])
        return CompletionChoice(index=index, text=text, logprobs=block, finish_reason=self.turn.finish_reason)


class CompletionChunks:
    """Chunks of one completions stream; `head` is the same in all of them."""

    def __init__(self, call_id: str, model_name: str, *, include_usage: bool) -> None:
        self.include_usage = include_usage
        self._call_id = call_id
        self._model_name = model_name

    @cached_property
    def head(self) -> bytes:
        return b'data: {"id":%s,"object":"text_completion","created":%d,"model":%s,"choices":[' % (
            quoted(self._call_id),
            int(time.time()),
            quoted(self._model_name),
        )

    def piece(self, index: int, text: str, logprobs: LegacyLogprobsBody | None, reason: bytes = b"null") -> bytes:
        """Text of one choice."""
        scores = b"null" if logprobs is None else encode(logprobs)
        choice = b'{"index":%d,"text":%s,"logprobs":%s,"finish_reason":%s}]' % (index, quoted(text), scores, reason)
        return self.head + choice + (b',"usage":null}\n\n' if self.include_usage else b"}\n\n")

    def finish(self, index: int, turn: Turn) -> bytes:
        """The chunk that ends one choice."""
        return self.piece(index, "", None, quoted(turn.finish_reason))

    def usage(self, usages: list[Usage]) -> bytes:
        """The usage chunk, when it was asked for."""
        if not self.include_usage:
            return b""
        return self.head + b'],"usage":' + encode(UsageBody.of(usages)) + b"}\n\n"
