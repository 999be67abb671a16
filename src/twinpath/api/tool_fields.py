"""The fields about tools -> which tools the model sees, which it may call, and whether it must."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from twinpath.api.field_look import FieldLook
from twinpath.api.schemas import (
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
    ChatCompletionRequest,
    Tool,
    ToolFunction,
)
from twinpath.errors import InvalidRequest

T = TypeVar("T")
#: What every format can write without quoting; wider than OpenAI's, since dots and slashes are about.
_NAME = re.compile(rf"[A-Za-z0-9_.:/-]{{1,{MAX_TOOL_NAME_CHARS}}}")
_LOOK = FieldLook({"tools", "tool_choice", "functions", "function_call"})
_tools = msgspec.json.Decoder(list[Tool] | None)
_functions = msgspec.json.Decoder(list[ToolFunction] | None)
_choice = msgspec.json.Decoder(str | dict[str, Any] | None)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What one request wants of tools. `callable`: those the model may call, all or some of `tools`, which it sees."""

    tools: tuple[ToolFunction, ...]
    callable: tuple[ToolFunction, ...]
    #: At least one call is demanded.
    required: bool
    #: None: no limit.
    max_calls: int | None
    #: Of the body, where the tools came from: `tools`, or `functions`.
    field: str = "tools"

    @property
    def is_bound(self) -> bool:
        """Whether a grammar holds the answer: a call is demanded, or a tool is strict."""
        return self.required or any(function.strict for function in self.callable)

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Of the arguments of those that may be called."""
        return {function.name: function.parameters or {} for function in self.callable}

    def place_of(self, function: ToolFunction) -> str:
        """Where the caller has the schema of one of `tools`."""
        index = next(index for index, tool in enumerate(self.tools) if tool.name == function.name)
        return f"{self.field}[{index}]{'.function' if self.field == 'tools' else ''}.parameters"

    def prompt_tools(self) -> list[dict[str, Any]]:
        """The tools as chat templates expect them: every key there, so that none has to ask."""
        return [{"type": "function", "function": _for_prompt(function)} for function in self.tools]


def tool_use(fields: ChatCompletionRequest) -> ToolUse | None:
    """None: no tools, or none to be called; the model then does not hear of them.

    Raises: InvalidRequest naming the field.
    """
    if not _LOOK.finds_any(fields):
        return None
    tools, field = _tools_of(fields)
    mode, names, param = _choice_of(fields)
    if mode == "none" or (not tools and mode == "auto"):
        return None
    if not tools:
        raise InvalidRequest(f"'{param}' demands a call, but there are no tools.", param=param)
    if unknown := next((name for name in names or () if name not in {tool.name for tool in tools}), None):
        message = f"'{param}' names the tool '{unknown[:MAX_TOOL_NAME_CHARS]}', which is not among the tools."
        raise InvalidRequest(message, param=param)
    callable_tools = tuple(tool for tool in tools if names is None or tool.name in names)
    one_only = fields.parallel_tool_calls is False or mode == "named"
    return ToolUse(tools, callable_tools, mode != "auto", 1 if one_only else None, field)


def _tools_of(fields: ChatCompletionRequest) -> tuple[tuple[ToolFunction, ...], str]:
    """The tools, and the field they came from."""
    tools = _decoded(fields.tools, "tools", _tools)
    name = "tools" if tools else "functions"
    functions = [tool.function for tool in tools or ()]
    if not functions:
        functions = list(_decoded(fields.functions, "functions", _functions) or ())
    if len(functions) > MAX_TOOLS:
        raise InvalidRequest(f"'{name}' holds {len(functions)} tools; at most {MAX_TOOLS} are accepted.", param=name)
    for index, function in enumerate(functions):
        if not _NAME.fullmatch(function.name):
            param = f"{name}[{index}].function.name" if name == "tools" else f"{name}[{index}].name"
            message = f"'{param}' must be 1 to {MAX_TOOL_NAME_CHARS} letters, digits or any of _ - . : /"
            raise InvalidRequest(message, param=param)
    if len({function.name for function in functions}) < len(functions):
        raise InvalidRequest(f"'{name}' holds two tools of one name.", param=name)
    return tuple(functions), name


def _choice_of(fields: ChatCompletionRequest) -> tuple[str, tuple[str, ...] | None, str]:
    """auto, none, required or named; the names to choose from, None for all; and the field that says so."""
    choice = _decoded(fields.tool_choice, "tool_choice", _choice)
    param = "tool_choice"
    if choice is None:
        choice, param = _decoded(fields.function_call, "function_call", _choice), "function_call"
    if choice is None:
        return "auto", None, param
    if isinstance(choice, str):
        if choice in ("auto", "none", "required"):
            return choice, None, param
        raise _bad_choice(param)
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if not isinstance(allowed, dict) or allowed.get("mode", "auto") not in ("auto", "required"):
            raise _bad_choice(param)
        names = tuple(_name_of(tool, param) for tool in _listed(allowed, param))
        return allowed.get("mode", "auto"), names, param
    if choice.get("type", "function") != "function":
        raise _bad_choice(param)
    return "named", (_name_of(choice, param),), param


def _listed(allowed: dict[str, Any], param: str) -> list[Any]:
    tools = allowed.get("tools")
    if not isinstance(tools, list) or not tools:
        raise _bad_choice(param)
    return tools


def _name_of(choice: Any, param: str) -> str:
    """`{"function": {"name": ...}}`, or the Responses API's and the legacy `{"name": ...}`."""
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _bad_choice(param)
    return name


def _bad_choice(param: str) -> InvalidRequest:
    forms = '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
    return InvalidRequest(f"'{param}' must be {forms}.", param=param)


def _for_prompt(function: ToolFunction) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, **(function.parameters or {})}
    return {"name": function.name, "description": function.description or "", "parameters": parameters}


def _decoded(raw: Raw, name: str, decoder: msgspec.json.Decoder[T | None]) -> T | None:
    text = memoryview(raw)
    if not text:
        return None
    if len(text) > MAX_TOOLS_BYTES:
        raise InvalidRequest(f"'{name}' has {len(text)} bytes; at most {MAX_TOOLS_BYTES} are accepted.", param=name)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        param = name + path.rstrip("`").removesuffix("[...]") if path else name
        raise InvalidRequest(f"'{param[:120]}' is not valid: {what}.", param=param[:120]) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest(f"'{name}' is not valid JSON.", param=name) from None
    except RecursionError:
        raise InvalidRequest(f"'{name}' is nested too deeply.", param=name) from None
