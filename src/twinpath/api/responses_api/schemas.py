"""Bodies of /v1/responses as msgspec structs; the rules of `twinpath.api.schemas` hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from twinpath.api.misplaced import NEUTRAL_VALUES as MISPLACED_VALUES
from twinpath.api.misplaced import MisplacedFields
from twinpath.api.schemas import MAX_MESSAGES, Positive, Role, Temperature, TopLogprobs, TopP

#: Fields that would change the output and are not served: name -> values that ask for nothing.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "truncation": ("disabled",),
}
#: The chat endpoint's that this one has under other names.
OWN_NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "structured_outputs": "text.format",
    "guided_json": "text.format",
    "functions": "tools",
    "function_call": "tool_choice",
    "logprobs": "include",
}
#: All that are refused -> values that ask for nothing.
MISPLACED = MISPLACED_VALUES | {"max_tokens": (), "top_k": (0, -1), "min_p": (0,), "stop_sequences": ([],)}
#: These and the others.
REFUSED_VALUES = NEUTRAL_VALUES | MISPLACED


def _raw() -> Raw:
    return field(default_factory=Raw)


class ItemPart(Struct, kw_only=True, gc=False):
    """One part of an item's content; only those with text are served."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(Struct, kw_only=True, gc=False, omit_defaults=True):
    """One item of a conversation, new or replayed; which fields it needs depends on `type` (see `convert`).

    A replayed item's `status` is not looked at, and its `id` only where it is a reference.
    """

    type: str | None = None
    id: str | None = None
    role: Role | None = None
    content: str | list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None


class FunctionTool(Struct, kw_only=True):
    """A function of the client's own; a tool that OpenAI's servers would run is refused."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Raw | UnsetType = UNSET
    strict: bool | None = None


class ToolName(Struct, kw_only=True):
    type: str
    name: str | None = None


class ResponsesToolChoice(Struct, kw_only=True):
    """`function` names one; `allowed_tools` a set and whether it must be used."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ToolName] | None = None


class TextFormat(Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: Raw | UnsetType = UNSET
    strict: bool | None = None


class TextConfig(Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Struct, kw_only=True):
    """`effort` goes to the chat template, for models that have it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: str | None = None


class ResponsesRequest(MisplacedFields, kw_only=True):
    """Body of POST /v1/responses."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    #: Kept for `previous_response_id` unless false.
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[str] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: Raw = _raw()
    #: Declared to be refused: they would change the output.
    background: bool | None = None
    conversation: Raw = _raw()
    prompt: Raw = _raw()
    truncation: Literal["disabled", "auto"] | None = None
    max_tokens: Raw = _raw()
    top_k: Raw = _raw()
    min_p: Raw = _raw()
    stop_sequences: Raw = _raw()
