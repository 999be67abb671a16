"""From a chat request to a generation that is ready to run: the one path of chat, Messages, Responses and gRPC."""

from __future__ import annotations

import msgspec
from starlette.types import Scope

from twinpath.api.choices import open_choices
from twinpath.api.exchange import Exchange
from twinpath.api.generation import Ask, Door, new_id
from twinpath.api.normalize import logprobs_of, stops_of
from twinpath.api.response_format import answer_grammar
from twinpath.api.schemas import ChatCompletionRequest
from twinpath.api.tool_fields import ToolUse, tool_use
from twinpath.api.tool_grammar import schemas_named, tools_grammar
from twinpath.api.turn import Turn
from twinpath.text.answer import NO_TOOLS, AnswerParser
from twinpath.types import Grammar

#: Characters that take as long to handle as a usual tool's schema takes to prepare.
_SCHEMA_SIZE = 1000


async def open_turn(
    door: Door, scope: Scope, fields: ChatCompletionRequest, *, request_id: str = "", param: str = "messages"
) -> Turn:
    """The turn of a request that gets one answer; see `open_turns`.

    Raises: RequestError.
    """
    [turn] = await open_turns(door, scope, fields, request_id=request_id or new_id("chatcmpl"), param=param)
    return turn


async def open_turns(
    door: Door, scope: Scope, fields: ChatCompletionRequest, *, request_id: str, param: str = "messages"
) -> list[Turn]:
    """A checked request's turns, one for each of its `n` choices. `param`: the field that holds the conversation, to
    blame when it is too long. `request_id`: a new one of ours, in the dialect of the endpoint.

    Raises: RequestError.
    """
    exchange = Exchange.of(scope)
    num_top, stops = logprobs_of(fields), stops_of(fields)
    prompt_ids, use = await open_prompt(door, exchange, fields)
    grammar, grammar_field = await _grammar(door, fields, use, prompt_ids)
    sampling = door.sampling.params(fields, room=door.room_after(prompt_ids, param), logprobs=num_top)
    return open_choices(
        door,
        Ask(scope, exchange, fields, stops, grammar, grammar_field),
        prompt_ids,
        sampling,
        call_id=request_id,
        make_parser=lambda: _parser(door, use, prompt_ids),
    )


async def open_prompt(
    door: Door, exchange: Exchange, fields: ChatCompletionRequest
) -> tuple[list[int], ToolUse | None]:
    """Ids of a request's prompt, and the tools it may use.

    Raises: RequestError.
    """
    num_tool_bytes = len(memoryview(fields.tools))
    # About fifty times faster than encoding prompts.
    use = await door.offload.run(num_tool_bytes // 50, lambda: tool_use(fields))
    return await door.prompts.chat(fields, exchange.num_body_bytes, use.prompt_tools() if use else ()), use


async def _grammar(
    door: Door, fields: ChatCompletionRequest, use: ToolUse | None, prompt_ids: list[int]
) -> tuple[Grammar | None, str]:
    """Of the calls where they are bound, of `response_format`, or of one or the other. Reasoning stays free. And the
    field to blame for it."""
    free_from, free_until = _reasoning_marks(door, prompt_ids)
    answer, field = await answer_grammar(door, fields, free_until=free_until, free_from=free_from)
    if use is None or not (use.is_bound or answer is not None):
        return answer, field
    otherwise = None if answer is None else msgspec.structs.replace(answer, free_until="", free_from="")
    # Schemas are walked, which takes longer than decoding them did.
    num_schemas = sum(tool.parameters is not None for tool in use.callable)
    grammar = await door.offload.run(
        num_schemas * _SCHEMA_SIZE,
        lambda: tools_grammar(use, door.text.answers, free_until=free_until, free_from=free_from, otherwise=otherwise),
    )
    if grammar is not None:
        with schemas_named(use, use.callable):
            await door.grammars.check(grammar, use.field)
    return grammar, use.field if use.is_bound else field


def _reasoning_marks(door: Door, prompt_ids: list[int]) -> tuple[str, str]:
    """What begins and what ends the reasoning before an answer; nothing begins it where the prompt has."""
    marks = door.text.answers.reasoning
    if marks is None:
        return "", ""
    return "" if door.text.opens_reasoning(prompt_ids) else marks.begin, marks.end


def _parser(door: Door, use: ToolUse | None, prompt_ids: list[int]) -> AnswerParser | None:
    """None where the answer can only be content, which then needs no look at its characters."""
    answers = door.text.answers
    if use is None and answers.reasoning is None:
        return None
    return answers.parser(
        tools=use.schemas if use else NO_TOOLS,
        max_calls=use.max_calls if use else None,
        reasoning_open=door.text.opens_reasoning(prompt_ids),
    )
