"""A Messages body -> the chat request that means the same. What has no meaning here is refused by its place."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from twinpath.api.anthropic.schemas import (
    MISPLACED,
    OWN_NAMES,
    CountTokensRequest,
    InputBlock,
    InputMessage,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
)
from twinpath.api.field_names import FieldNames
from twinpath.api.misplaced import check_misplaced
from twinpath.api.raw_fields import asks_for
from twinpath.api.schemas import MAX_PARTS, ChatCompletionRequest, ChatMessage, FunctionCall, ToolCall
from twinpath.api.schemas import Thinking as ChatThinking
from twinpath.errors import InvalidRequest

#: Claude Code's first system block; it changes with every request, so that no prompt prefix would ever be found again.
BILLING_PREFIX = "x-anthropic-billing-header"
_GAP = "\n\n"
_SHARED_NAMES = (
    (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"stop", "stop_sequences"),
)
_FORMAT = r"response_format(\.json_schema)?"
_NAMES = FieldNames(*_SHARED_NAMES, (_FORMAT, "output_config.format"))
_OLDER_NAMES = FieldNames(*_SHARED_NAMES, (_FORMAT, "output_format"))


def to_chat(fields: CountTokensRequest) -> ChatCompletionRequest:
    """The chat request behind a body, sampling fields included where the body has any.

    Raises: InvalidRequest.
    """
    for name in ("mcp_servers", "container"):
        if asks_for(getattr(fields, name), ([],)):
            raise InvalidRequest(f"'{name}' is not served: the tools of a request run at its client.", param=name)
    check_misplaced(fields, MISPLACED, OWN_NAMES)
    if isinstance(fields, MessagesRequest):
        _check_budget(fields)
    _check_counts(fields)
    chat = ChatCompletionRequest(messages=_messages(fields), model=fields.model)
    if fields.thinking is not None:
        chat.thinking = ChatThinking(type=fields.thinking.type)
    tools, choice = fields.tools or [], fields.tool_choice
    if tools:
        chat.tools = Raw(msgspec.json.encode([_tool(tool, index) for index, tool in enumerate(tools)]))
    if choice is not None:
        chat.tool_choice = Raw(msgspec.json.encode(_tool_choice(choice)))
        if choice.disable_parallel_tool_use is not None:
            chat.parallel_tool_calls = not choice.disable_parallel_tool_use
    output_format = fields.output_format or (fields.output_config and fields.output_config.format)
    if output_format:
        json_schema = {"name": "output", "schema": output_format.schema, "strict": True}
        chat.response_format = Raw(msgspec.json.encode({"type": "json_schema", "json_schema": json_schema}))
    if isinstance(fields, MessagesRequest):
        _sampling(fields, chat)
    return chat


def names(fields: CountTokensRequest) -> FieldNames:
    """For errors of the chat request that a body becomes."""
    return _OLDER_NAMES if fields.output_format else _NAMES


def _check_budget(fields: MessagesRequest) -> None:
    thinking = fields.thinking
    if thinking is not None and thinking.type == "enabled" and (thinking.budget_tokens or 0) >= fields.max_tokens:
        raise InvalidRequest(
            f"'max_tokens' ({int(fields.max_tokens)}) must be greater than 'thinking.budget_tokens' "
            f"({int(thinking.budget_tokens or 0)}): reasoning counts too.",
            param="thinking.budget_tokens",
        )


def _check_counts(fields: CountTokensRequest) -> None:
    num_blocks = sum(len(message.content) for message in fields.messages if isinstance(message.content, list))
    if num_blocks > MAX_PARTS:
        message = f"'messages' hold {num_blocks} content blocks in all; at most {MAX_PARTS} are accepted."
        raise InvalidRequest(message, param="messages")


def _sampling(fields: MessagesRequest, chat: ChatCompletionRequest) -> None:
    chat.max_tokens = fields.max_tokens
    chat.stream = fields.stream
    chat.temperature, chat.top_p, chat.top_k, chat.min_p = fields.temperature, fields.top_p, fields.top_k, fields.min_p
    chat.stop = fields.stop_sequences
    chat.user = fields.metadata.user_id if fields.metadata else None


def _messages(fields: CountTokensRequest) -> list[ChatMessage]:
    system = _system_text(fields.system)
    messages = [ChatMessage(role="system", content=system)] if system else []
    for index, message in enumerate(fields.messages):
        messages += _turns(message, f"messages[{index}].content")
    return messages


def _system_text(system: str | list[InputBlock] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(system)]
    if texts and texts[0].startswith(BILLING_PREFIX):
        del texts[0]
    return _GAP.join(filter(None, texts))


def _turns(message: InputMessage, place: str) -> list[ChatMessage]:
    """One message is several turns of a chat when it holds tool results: each is a turn, before the text beside it."""
    if message.content is None or isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    if message.role == "assistant":
        return [_assistant(message.content, place)]
    results: list[ChatMessage] = []
    texts: list[str] = []
    for index, block in enumerate(message.content):
        where = f"{place}[{index}]"
        if block.type == "tool_result":
            results.append(_tool_result(block, where))
        else:
            texts.append(_text(block, where))
    said = [ChatMessage(role=message.role, content=_GAP.join(texts))] if texts or not results else []
    return [*results, *said]


def _assistant(blocks: list[InputBlock], place: str) -> ChatMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        where = f"{place}[{index}]"
        if block.type == "tool_use":
            calls.append(_tool_call(block, where))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":  # Nobody but its writer can read that.
            texts.append(_text(block, where))
    return ChatMessage(
        role="assistant",
        content="".join(texts) if texts or not calls else None,
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _tool_call(block: InputBlock, where: str) -> ToolCall:
    if block.name is None:
        raise InvalidRequest(f"'{where}.name' is required.", param=f"{where}.name")
    arguments = bytes(block.input).decode()
    if arguments in ("", "null"):
        arguments = "{}"
    if not arguments.startswith("{"):
        raise InvalidRequest(f"'{where}.input' must be an object.", param=f"{where}.input")
    return ToolCall(id=block.id, type="function", function=FunctionCall(name=block.name, arguments=arguments))


def _tool_result(block: InputBlock, where: str) -> ChatMessage:
    if block.tool_use_id is None:
        raise InvalidRequest(f"'{where}.tool_use_id' is required.", param=f"{where}.tool_use_id")
    content = block.content
    if isinstance(content, list):
        content = _GAP.join(_text(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    if block.is_error:
        # Chat turns have no flag for it, and a model must not take a failure for a result.
        content = f"Error: {content or 'the tool failed'}"
    return ChatMessage(role="tool", content=content or "", tool_call_id=block.tool_use_id)


def _text(block: InputBlock, where: str) -> str:
    if block.type != "text":
        raise InvalidRequest(f"'{where}' is of type '{block.type[:80]}', which is not served here.", param=where)
    if block.text is None:
        raise InvalidRequest(f"'{where}.text' is required.", param=f"{where}.text")
    return block.text


def _tool(tool: MessagesTool, index: int) -> dict[str, object]:
    if tool.type not in (None, "custom"):
        where = f"tools[{index}]"
        raise InvalidRequest(f"'{where}' is a tool of the server ('{tool.type[:80]}'); none is served.", param=where)
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if memoryview(tool.input_schema):
        function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: MessagesToolChoice) -> object:
    if choice.type != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    if choice.name is None:
        raise InvalidRequest("'tool_choice.name' is required.", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}
