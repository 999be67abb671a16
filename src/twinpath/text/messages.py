"""OpenAI-style messages -> what chat templates can read.

Input: plain dicts whose schema `api` has checked. Rules, in this order:
  1. content: null, missing and `[]` become ""; text parts are joined; no key is ever None, so "None" is never rendered.
  2. role `developer` is `system` unless the template names it; legacy `function` is `tool`.
  3. tool call arguments become an object when they parse as one; otherwise the text stays as it is.
  4. What the template cannot express is said in words it can (see `TemplateTraits`):
     - tools are described in the system message of a template that does not show them;
     - tool calls of a template that ignores them are appended to the content as the model is told to write them;
     - calls of one turn are split over turns, each with its result, where it takes one at a time;
     - call ids get the form that it insists on;
     - tool results become user messages in `<tool_response>`;
     - system messages that it would refuse or drop where they stand are joined, in order, to one system message at the
       front (or, when it knows no system role at all, to the first user message), a blank line between them;
     - neighbours of one role that it refuses are joined the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from twinpath.text.answer import TOOL_FORMATS, ToolFormat
from twinpath.text.template_traits import TemplateTraits
from twinpath.text.tool_history import describe_tools, fit_calls, pair_calls, spell_tools

Message = dict[str, Any]
_GAP = "\n\n"


def normalize(
    messages: Iterable[Mapping[str, Any]],
    traits: TemplateTraits,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_format: ToolFormat = TOOL_FORMATS["json"],
) -> list[Message]:
    """Messages as the template of `traits` can render them; the input is not changed. `tools`: those that the model may
    call, in OpenAI's shape; how it writes calls is `tool_format`.
    """
    plain = [_plain(message, traits) for message in messages]
    if tools and not traits.renders_tools:
        plain = _lead_system(plain, describe_tools(tools, tool_format))
    plain = [spell_tools(message, traits, tool_format) for message in pair_calls(plain)]
    plain = fit_calls(plain, traits)
    plain = _place_systems(plain, traits)
    has_neighbours = any(a["role"] == b["role"] != "tool" for a, b in pairwise(plain))
    if has_neighbours and not traits.renders_neighbours:
        plain = _join_neighbours(plain)
    return plain


def _plain(message: Mapping[str, Any], traits: TemplateTraits) -> Message:
    role = str(message["role"])
    if role == "function":
        role = "tool"
    elif role == "developer" and not traits.names_developer:
        role = "system"
    plain: Message = {"role": role, "content": _text_of(message.get("content"))}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        plain["reasoning_content"] = reasoning
    for key in ("name", "tool_call_id"):
        if isinstance(message.get(key), str):
            plain[key] = message[key]
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _text_of(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = [part if isinstance(part, str) else part.get("text") or part.get("refusal") for part in content]
    return "".join(text for text in texts if text)


def _plain_call(call: Mapping[str, Any]) -> Message:
    function = call["function"]
    plain: Message = {"type": "function"}
    if isinstance(call.get("id"), str):
        plain["id"] = call["id"]
    plain["function"] = {"name": function["name"], "arguments": _arguments_of(function.get("arguments"))}
    return plain


def _arguments_of(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _place_systems(messages: list[Message], traits: TemplateTraits) -> list[Message]:
    places = [index for index, message in enumerate(messages) if message["role"] == "system"]
    if not places:
        return messages
    leading = places == list(range(len(places)))
    fits = traits.renders_late_system if not leading else len(places) == 1 or traits.renders_two_systems
    if fits and traits.renders_system:
        return messages
    text = _GAP.join(messages[index]["content"] for index in places if messages[index]["content"])
    others = [message for message in messages if message["role"] != "system"]
    if traits.renders_system:
        return [{"role": "system", "content": text}, *others]
    return _lead_first_user(others, text)


def _lead_system(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        first = messages[0] | {"content": _GAP.join(filter(None, (messages[0]["content"], text)))}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _lead_first_user(messages: Sequence[Message], text: str) -> list[Message]:
    for index, message in enumerate(messages):
        if message["role"] == "user":
            led = message | {"content": _GAP.join(filter(None, (text, message["content"])))}
            return [*messages[:index], led, *messages[index + 1 :]]
    return [{"role": "user", "content": text}, *messages]


def _join_neighbours(messages: Sequence[Message]) -> list[Message]:
    runs: list[list[Message]] = []
    for message in messages:
        last = runs[-1][0] if runs else None
        simple = "tool_calls" not in message and message["role"] != "tool"
        if last is not None and simple and last["role"] == message["role"] and "tool_calls" not in last:
            runs[-1].append(message)
        else:
            runs.append([message])
    # At once: joined one by one, thousands of neighbours would be copied thousands of times.
    return [run[0] | {"content": _GAP.join(filter(None, (message["content"] for message in run)))} for run in runs]
