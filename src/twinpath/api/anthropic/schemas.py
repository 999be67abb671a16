"""Bodies of /v1/messages as msgspec structs.

The rules of `twinpath.api.schemas` hold: null means absent, unknown fields are ignored, and what is not served is
declared, so that it is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from twinpath.api.misplaced import NEUTRAL_VALUES as MISPLACED_VALUES
from twinpath.api.misplaced import MisplacedFields
from twinpath.api.schemas import MAX_MESSAGES, MAX_STOPS, Count, Fraction, Positive, StopText, Temperature, TopP


def _raw() -> Raw:
    return field(default_factory=Raw)


#: The chat endpoint's that this one has under other names.
OWN_NAMES = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "structured_outputs": "output_config.format",
    "guided_json": "output_config.format",
    "functions": "tools",
    "function_call": "tool_choice",
}
#: All that are refused -> values that ask for nothing.
MISPLACED = MISPLACED_VALUES | {"top_logprobs": (0,)}
#: These and the others.
REFUSED_VALUES: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],), "container": ([],)} | MISPLACED


class InputBlock(Struct, kw_only=True, gc=False):
    """One content block of a replayed or new message; which fields it needs depends on `type` (see `convert`)."""

    type: str
    text: str | None = None
    #: tool_use
    id: str | None = None
    name: str | None = None
    input: Raw = _raw()
    #: tool_result
    tool_use_id: str | None = None
    content: str | list[InputBlock] | None = None
    is_error: bool | None = None
    #: thinking
    thinking: str | None = None


class InputMessage(Struct, kw_only=True, gc=False):
    """One turn. `system` is not Anthropic's, but Claude Code puts notes between turns that way."""

    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock] | None = None


class MessagesMetadata(Struct, kw_only=True):
    user_id: str | None = None


class MessagesToolChoice(Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesTool(Struct, kw_only=True):
    """A tool of the client's own. One that Anthropic's servers would run has another `type` and is refused."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Raw = _raw()
    strict: bool | None = None


class OutputFormat(Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Struct, kw_only=True):
    """`effort` is accepted, as a hint to models that have it."""

    format: OutputFormat | None = None
    effort: str | None = None


class Thinking(Struct, kw_only=True):
    """Whether the model is to think aloud; a model that cannot takes no notice."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None


class CountTokensRequest(MisplacedFields, kw_only=True):
    """Body of POST /v1/messages/count_tokens: all of a request that makes its prompt."""

    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    system: str | list[InputBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    #: Declared to be refused.
    mcp_servers: Raw = _raw()
    container: Raw = _raw()
    top_logprobs: Raw = _raw()


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Body of POST /v1/messages."""

    max_tokens: Positive
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Count | None = None
    min_p: Fraction | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    metadata: MessagesMetadata | None = None
