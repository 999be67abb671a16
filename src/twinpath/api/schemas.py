"""Request bodies as msgspec structs: the one truth for validation and for the OpenAPI document.

Rules of the door (docs/decisions/002-request-fields.md): every optional field may be null, which means absent; integers
may come as 82.0; unknown fields are ignored; known ones that are not served are declared, so that `normalize` refuses
them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Most entries of `logit_bias`, `stop` and `stop_token_ids`, and most prompts of one completions call.
MAX_LOGIT_BIAS, MAX_STOPS, MAX_STOP_IDS, MAX_PROMPTS = 1024, 64, 256, 128
#: Most answers of one call, over all its prompts.
MAX_CHOICES = 128
#: Most characters of all stop strings together: they are compiled before the first token.
MAX_STOP_CHARS = 4096
MAX_SALT_CHARS = 512
#: Most messages of a conversation, and most tool calls and most content parts of all its messages together: templates
#: take about 0.1 ms for each.
MAX_MESSAGES, MAX_TOOL_CALLS, MAX_PARTS = 10_000, 10_000, 10_000
#: Most tools, longest name of one, and most bytes of JSON of all (a hundred servers' worth of descriptions).
MAX_TOOLS, MAX_TOOL_NAME_CHARS, MAX_TOOLS_BYTES = 1024, 128, 4 * 1024 * 1024
#: Largest `chat_template_kwargs`, and largest `metadata` that is looked into for a session id, in bytes of JSON.
MAX_TEMPLATE_KWARGS_BYTES = MAX_METADATA_BYTES = 64 * 1024

Count = Annotated[int, Meta(ge=0, le=INT64_MAX)] | Annotated[float, Meta(ge=0, lt=2.0**63, multiple_of=1)]
Positive = Annotated[int, Meta(ge=1, le=INT64_MAX)] | Annotated[float, Meta(ge=1, lt=2.0**63, multiple_of=1)]
Int64 = (
    Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)] | Annotated[float, Meta(ge=-(2.0**63), lt=2.0**63, multiple_of=1)]
)
TopLogprobs = Annotated[int, Meta(ge=0, le=20)] | Annotated[float, Meta(ge=0, le=20, multiple_of=1)]
LegacyLogprobs = Annotated[int, Meta(ge=0, le=5)] | Annotated[float, Meta(ge=0, le=5, multiple_of=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Factor = Annotated[float, Meta(gt=0, le=100)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TopK = Annotated[int, Meta(ge=-1, le=INT64_MAX)] | Annotated[float, Meta(ge=-1, lt=2.0**63, multiple_of=1)]
#: Hashed on the event loop.
CacheSalt = Annotated[str, Meta(max_length=MAX_SALT_CHARS)]
StopText = Annotated[str, Meta(min_length=1)]
Stops = StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)]


def _raw() -> Raw:
    """A field that is not decoded with the body, since millions of small values would stop every stream: it is scanned
    only. Empty when missing; `null` is the four characters."""
    return field(default_factory=Raw)


class StreamOptions(Struct, kw_only=True):
    """`stream_options`; `include_obfuscation` is accepted and not needed."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """Fields that both generation endpoints share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    repetition_penalty: Factor | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: Int64 | None = None
    n: Positive | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[list[Count], Meta(max_length=MAX_STOP_IDS)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    cache_salt: CacheSalt | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    #: Lower goes first, with `--policy priority` only.
    priority: Int64 | None = None
    #: Accepted, without effect: the engine's ids are always ours.
    request_id: str | None = None
    metadata: Raw = _raw()
    #: What the answer must be a word of: `api/response_format.py`. The others are how other servers spell it.
    response_format: Raw = _raw()
    guided_json: Raw = _raw()
    guided_regex: Raw = _raw()
    guided_choice: Raw = _raw()
    guided_grammar: Raw = _raw()
    structured_outputs: Raw = _raw()
    json_schema: Raw = _raw()
    regex: Raw = _raw()
    choice: Raw = _raw()
    grammar: Raw = _raw()
    ebnf: Raw = _raw()
    #: Declared to be refused: they would change the output.
    best_of: Positive | None = None
    use_beam_search: bool | None = None
    prompt_logprobs: Count | None = None


Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ContentPart(Struct, kw_only=True, gc=False):
    """One part of a message; only `text` parts are served."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Struct, kw_only=True, gc=False):
    """A call the model made earlier; `arguments` is the text it wrote, which need not be JSON."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct, kw_only=True, gc=False):
    """One replayed tool call; unknown extra keys are ignored and ids are free-form."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall


class ChatMessage(Struct, kw_only=True, gc=False):
    """One turn of a conversation. Content may be text, parts, empty, null or missing for every role."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ToolFunction(Struct, kw_only=True):
    """A function that the model may call. `parameters` is JSON Schema: MCP servers send every form of it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    """One of `tools`; functions are the only kind served."""

    type: Literal["function"] = "function"
    function: ToolFunction


class Thinking(Struct, kw_only=True):
    """Whether the model shall reason, as Anthropic's and DeepSeek's clients say it; a budget is not kept."""

    type: Literal["enabled", "disabled", "adaptive"]


class ChatCompletionRequest(SamplingFields, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    chat_template_kwargs: Raw = _raw()
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    thinking: Thinking | None = None
    parallel_tool_calls: bool | None = None
    tools: Raw = _raw()
    tool_choice: Raw = _raw()
    functions: Raw = _raw()
    function_call: Raw = _raw()
    modalities: Raw = _raw()
    audio: Raw = _raw()
    web_search_options: Raw = _raw()


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of POST /v1/completions. `max_tokens` may be 0 here: with `echo` it scores the prompt alone."""

    prompt: Annotated[str, Meta(min_length=1)] | Annotated[list[str | Count | list[Count]], Meta(min_length=1)]
    max_tokens: Count | None = None
    echo: bool | None = None
    logprobs: LegacyLogprobs | None = None
    suffix: str | None = None
