"""Answers as msgspec structs: what is encoded is what the OpenAPI document says."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from twinpath.text.answer import Message
from twinpath.types import Usage

Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class PromptTokensDetails(Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, kw_only=True):
    reasoning_tokens: int = 0


class Timing(Struct, kw_only=True, omit_defaults=True):
    """What this server adds to `usage`: the promise made at arrival and what came of it, in ms from the last byte."""

    lane: str | None = None
    slo_class: str | None = None
    predicted_ttft_ms: float | None = None
    ttft_ms: float | None = None


class TimedUsage(Usage, frozen=True, kw_only=True):
    """Token counts, and what came of the promise."""

    timing: Timing


class UsageBody(Struct, kw_only=True):
    """`usage`: always there in whole answers, and in the usage chunk of a stream that asked for it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    #: Of the first choice.
    twinpath: Timing | UnsetType = UNSET

    @staticmethod
    def of(usages: list[Usage]) -> UsageBody:
        """The sum over the choices of one call."""
        num_prompt = sum(usage.prompt_tokens for usage in usages)
        num_output = sum(usage.completion_tokens for usage in usages)
        return UsageBody(
            prompt_tokens=num_prompt,
            completion_tokens=num_output,
            total_tokens=num_prompt + num_output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(usage.cached_tokens for usage in usages)),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=sum(usage.reasoning_tokens for usage in usages)
            ),
            twinpath=next((usage.timing for usage in usages if isinstance(usage, TimedUsage)), UNSET),
        )


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct, kw_only=True):
    """One output token; `bytes` lets a client join characters that tokens split."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    content: list[ChatLogprob]


class FunctionBody(Struct, kw_only=True):
    name: str
    arguments: str


class ToolCallBody(Struct, kw_only=True):
    """One call; `arguments` is JSON text as the model wrote it."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionBody


class AssistantMessage(Struct, kw_only=True):
    """`content` is null when there are calls and no text. Reasoning has two names, since clients read one or other."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    tool_calls: list[ToolCallBody] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET

    @staticmethod
    def of(message: Message) -> AssistantMessage:
        calls = [
            ToolCallBody(id=call.call_id, function=FunctionBody(name=call.name, arguments=call.arguments))
            for call in message.calls
        ]
        reasoning = message.reasoning or UNSET
        return AssistantMessage(
            content=None if calls and not message.content else message.content,
            tool_calls=calls or UNSET,
            reasoning_content=reasoning,
            reasoning=reasoning,
        )


class ChatChoice(Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(Struct, kw_only=True):
    """Body of a whole chat answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody


class LegacyLogprobsBody(Struct, kw_only=True):
    """Parallel arrays, one entry per token; None where a token has no probability (the first of an echoed prompt)."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: LegacyLogprobsBody | None
    finish_reason: Finish | None


class Completion(Struct, kw_only=True):
    """Body of a whole completions answer, and of each of its stream's chunks (those without `usage`)."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody


class ModelCard(Struct, kw_only=True):
    """One served model; `max_model_len` is None until it is loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "twinpath"
    max_model_len: int | None = None


class ModelList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(Struct, kw_only=True):
    """`status` is "ok", or why not."""

    status: str
