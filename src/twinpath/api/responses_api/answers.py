"""Response objects and their output items."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from twinpath.api.blocks import Block
from twinpath.api.responses import ChatLogprob
from twinpath.api.responses_api.schemas import InputItem, ItemPart, Reasoning, ResponsesRequest
from twinpath.api.turn import Turn, TurnStats

_ID_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Struct, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[None] = []
    logprobs: list[ChatLogprob] = []


class OutputMessage(Struct, kw_only=True, tag="message"):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningText(Struct, kw_only=True):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class ReasoningItem(Struct, kw_only=True, tag="reasoning"):
    id: str
    status: Status
    summary: list[None] = []
    content: list[ReasoningText]


class FunctionCallItem(Struct, kw_only=True, tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class InputTokensDetails(Struct, kw_only=True):
    cached_tokens: int


class OutputTokensDetails(Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @staticmethod
    def of(stats: TurnStats) -> ResponseUsage:
        usage = stats.usage
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=stats.num_reasoning),
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        )


class ResponseErrorBody(Struct, kw_only=True):
    code: str
    message: str


class IncompleteDetails(Struct, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseBody(Struct, kw_only=True):
    """A response: what was asked, echoed, and what came of it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    background: bool = False
    error: ResponseErrorBody | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: Raw
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: Reasoning
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: Raw
    tool_choice: Raw
    tools: Raw
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None


class DeletedResponse(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


def begun_response(fields: ResponsesRequest, turn: Turn, model_name: str) -> ResponseBody:
    """A response that has no output yet."""
    sampling = turn.request.sampling
    metadata = memoryview(fields.metadata)
    return ResponseBody(
        id=turn.request.request_id,
        created_at=int(time.time()),
        status="in_progress",
        instructions=fields.instructions,
        max_output_tokens=None if fields.max_output_tokens is None else int(fields.max_output_tokens),
        metadata=fields.metadata if metadata and bytes(metadata[:4]) != b"null" else Raw(b"{}"),
        model=model_name,
        output=[],
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        previous_response_id=fields.previous_response_id,
        prompt_cache_key=fields.prompt_cache_key,
        reasoning=fields.reasoning or Reasoning(),
        safety_identifier=fields.safety_identifier,
        store=fields.store is not False,
        temperature=sampling.temperature,
        text=_echo(fields.text) or Raw(b'{"format":{"type":"text"}}'),
        tool_choice=_echo(fields.tool_choice) or Raw(b'"auto"'),
        tools=_echo(fields.tools) or Raw(b"[]"),
        top_logprobs=int(fields.top_logprobs or 0),
        top_p=sampling.top_p,
        user=fields.user,
    )


def finish_response(body: ResponseBody, turn: Turn, output: list[OutputItem]) -> None:
    """Fill in what a finished turn came to."""
    body.output = output
    body.usage = ResponseUsage.of(turn.stats)
    body.status = "completed"
    if turn.finish_reason == "length":
        body.status, body.incomplete_details = "incomplete", IncompleteDetails(reason="max_output_tokens")


def output_item(
    block: Block, response_id: str, status: Status, logprobs: list[ChatLogprob] | None = None
) -> OutputItem:
    """A block as an item; one in progress has no content yet."""
    item_id, begun = item_id_of(block, response_id), status != "in_progress"
    if block.kind == "reasoning":
        thoughts = [ReasoningText(text=block.text)] if begun else []
        return ReasoningItem(id=item_id, status=status, content=thoughts)
    if block.kind == "call":
        return FunctionCallItem(id=item_id, status=status, call_id=block.call_id, name=block.name, arguments=block.text)
    texts = [OutputText(text=block.text, logprobs=logprobs or [])] if begun else []
    return OutputMessage(id=item_id, status=status, content=texts)


def item_id_of(block: Block, response_id: str) -> str:
    """The same whenever it is asked for: in deltas and in the final output."""
    return f"{_ID_PREFIXES[block.kind]}_{response_id.removeprefix('resp_')}{block.index:04x}"


def replayed(item: OutputItem) -> InputItem:
    """The item as the next request's conversation holds it."""
    if isinstance(item, FunctionCallItem):
        name, arguments = item.name, item.arguments
        return InputItem(type="function_call", id=item.id, call_id=item.call_id, name=name, arguments=arguments)
    parts = [ItemPart(type=part.type, text=part.text) for part in item.content]
    if isinstance(item, OutputMessage):
        return InputItem(type="message", id=item.id, role="assistant", content=parts)
    return InputItem(type="reasoning", id=item.id, content=parts)


def _echo(value: object) -> Raw | None:
    return None if value is None else Raw(msgspec.json.encode(value))
