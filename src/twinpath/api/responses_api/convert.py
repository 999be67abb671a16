"""A Responses body and the items before it -> the chat request that means the same."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from twinpath.api.field_names import FieldNames
from twinpath.api.misplaced import check_misplaced
from twinpath.api.raw_fields import asks_for
from twinpath.api.responses_api.schemas import (
    MISPLACED,
    NEUTRAL_VALUES,
    OWN_NAMES,
    FunctionTool,
    InputItem,
    ItemPart,
    ResponsesRequest,
    ResponsesToolChoice,
    TextFormat,
)
from twinpath.api.schemas import MAX_PARTS, ChatCompletionRequest, ChatMessage, FunctionCall, ToolCall
from twinpath.errors import InvalidRequest

#: The one `include` that asks for something this server has.
LOGPROBS = "message.output_text.logprobs"
#: For errors of the chat request that a body becomes.
NAMES = FieldNames(
    (r"messages", "input"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"response_format(\.json_schema)?", "text.format"),
    (r"max(_completion)?_tokens", "max_output_tokens"),
)


def new_items(fields: ResponsesRequest) -> list[InputItem]:
    """The items of the body itself."""
    if isinstance(fields.input, str):
        return [InputItem(type="message", role="user", content=fields.input)]
    return fields.input


def to_chat(fields: ResponsesRequest, items: list[InputItem]) -> ChatCompletionRequest:
    """`items`: the whole conversation, those of earlier responses first.

    Raises: InvalidRequest.
    """
    _check_served(fields)
    messages = _Messages(num_before=len(items) - len(new_items(fields)))
    if fields.instructions:
        messages.add(ChatMessage(role="system", content=fields.instructions))
    for index, item in enumerate(items):
        messages.take(item, index)
    chat = ChatCompletionRequest(messages=messages.finish(), model=fields.model)
    _options(fields, chat)
    if fields.tools:
        chat.tools = _raw([_tool(tool, index) for index, tool in enumerate(fields.tools)])
    if fields.tool_choice is not None:
        chat.tool_choice = _raw(_tool_choice(fields.tool_choice))
    chat.parallel_tool_calls = fields.parallel_tool_calls
    if fields.text is not None and fields.text.format is not None:
        chat.response_format = _raw(_response_format(fields.text.format))
    return chat


def _check_served(fields: ResponsesRequest) -> None:
    check_misplaced(fields, MISPLACED, OWN_NAMES)
    for name, neutral in NEUTRAL_VALUES.items():
        value = getattr(fields, name)
        if asks_for(value, neutral) if isinstance(value, Raw) else value is not None and value not in neutral:
            raise InvalidRequest(f"'{name}' asks for something this server does not support.", param=name)


def _options(fields: ResponsesRequest, chat: ChatCompletionRequest) -> None:
    chat.stream = fields.stream
    chat.max_completion_tokens = fields.max_output_tokens
    chat.temperature, chat.top_p = fields.temperature, fields.top_p
    if LOGPROBS in (fields.include or ()) or fields.top_logprobs:
        chat.logprobs, chat.top_logprobs = True, fields.top_logprobs or 0
    chat.prompt_cache_key, chat.user, chat.metadata = fields.prompt_cache_key, fields.user, fields.metadata
    chat.reasoning_effort = fields.reasoning.effort if fields.reasoning else None


class _Messages:
    """Items to messages. Reasoning, text and calls that follow each other are one turn of the assistant."""

    def __init__(self, num_before: int) -> None:
        self._num_before = num_before
        self._messages: list[ChatMessage] = []
        self._turn: ChatMessage | None = None
        self._num_parts = 0

    def take(self, item: InputItem, index: int) -> None:
        where = f"input[{index - self._num_before}]" if index >= self._num_before else "previous_response_id"
        kind = item.type or "message"
        if kind == "message":
            self._take_message(item, where)
        elif kind == "function_call":
            self._take_call(item, where)
        elif kind == "function_call_output":
            self.add(ChatMessage(role="tool", content=self._text(item.output, where), tool_call_id=item.call_id))
        elif kind == "reasoning":
            thoughts = self._text(item.content, where) or self._text(item.summary, where)
            turn = self._assistant(fresh=self._turn is not None and self._turn.content is not None)
            turn.reasoning_content = "\n".join(filter(None, (turn.reasoning_content, thoughts))) or None
        else:
            raise InvalidRequest(f"'{where}' is of type '{kind[:80]}', which is not served here.", param=where)

    def add(self, message: ChatMessage) -> None:
        """A turn that is nobody's continuation."""
        self._flush()
        self._messages.append(message)

    def finish(self) -> list[ChatMessage]:
        self._flush()
        return self._messages

    def _take_message(self, item: InputItem, where: str) -> None:
        if item.role is None:
            raise InvalidRequest(f"'{where}.role' is required.", param=f"{where}.role")
        text = self._text(item.content, where)
        if item.role != "assistant":
            self.add(ChatMessage(role=item.role, content=text))
            return
        turn = self._assistant(fresh=self._turn is not None and bool(self._turn.content or self._turn.tool_calls))
        turn.content = text

    def _take_call(self, item: InputItem, where: str) -> None:
        if item.name is None:
            raise InvalidRequest(f"'{where}.name' is required.", param=f"{where}.name")
        turn = self._assistant(fresh=False)
        function = FunctionCall(name=item.name, arguments=item.arguments)
        if turn.tool_calls is None:
            turn.tool_calls = []
        turn.tool_calls.append(ToolCall(id=item.call_id, type="function", function=function))

    def _assistant(self, *, fresh: bool) -> ChatMessage:
        """The assistant's turn that is being put together; `fresh`: a new one."""
        if fresh:
            self._flush()
        if self._turn is None:
            self._turn = ChatMessage(role="assistant")
        return self._turn

    def _flush(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn)
            self._turn = None

    def _text(self, content: str | list[ItemPart] | None, where: str) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        self._num_parts += len(content)
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"'input' holds more than {MAX_PARTS} content parts.", param="input")
        texts = []
        for index, part in enumerate(content):
            text = part.text if part.text is not None else part.refusal
            if text is None:
                place = f"{where}.content[{index}]"
                raise InvalidRequest(f"'{place}' of type '{part.type[:80]}' has no text.", param=place)
            texts.append(text)
        return "".join(texts)


def _tool(tool: FunctionTool, index: int) -> dict[str, Any]:
    where = f"tools[{index}]"
    if tool.type != "function":
        message = f"'{where}' is of type '{tool.type[:80]}'; this server serves the client's own functions alone."
        raise InvalidRequest(message, param=where)
    if tool.name is None:
        raise InvalidRequest(f"'{where}.name' is required.", param=f"{where}.name")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not UNSET and asks_for(tool.parameters, ()):
        function["parameters"] = tool.parameters
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: str | ResponsesToolChoice) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.type == "function" and choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type == "allowed_tools":
        if not choice.tools or not all(tool.name for tool in choice.tools):
            raise InvalidRequest("'tool_choice.tools' must name one function or more.", param="tool_choice.tools")
        tools = [{"type": tool.type, "function": {"name": tool.name}} for tool in choice.tools]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode or "auto", "tools": tools}}
    raise InvalidRequest(f"'tool_choice' of type '{choice.type[:80]}' is not served here.", param="tool_choice")


def _response_format(text_format: TextFormat) -> dict[str, Any]:
    if text_format.type != "json_schema":
        return {"type": text_format.type}
    schema: dict[str, Any] = {"name": text_format.name or "output"}
    if text_format.description is not None:
        schema["description"] = text_format.description
    if text_format.schema is not UNSET:
        schema["schema"] = text_format.schema
    if text_format.strict is not None:
        schema["strict"] = text_format.strict
    return {"type": "json_schema", "json_schema": schema}


def _raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))
