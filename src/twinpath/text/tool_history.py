"""Tools, calls and results in the words that a template has for them, or in plain text where it has none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from twinpath.text.answer.formats import ToolFormat
from twinpath.text.template_traits import TemplateTraits

Message = dict[str, Any]
_NAMED = "functions.{name}:{number}"

#: SmolLM2 Instruct was trained on these words. Source: model card of SmolLM2-1.7B-Instruct, "Function calling".
_SMOLLM2 = """\
You are an expert in composing functions. You are given a question and a set of possible functions.
Based on the question, you will need to make one or more function/tool calls to achieve the purpose.
If none of the functions can be used, point it out and refuse to answer.
If the given question lacks the parameters required by the function, also point it out.

You have access to the following tools:
<tools>{tools}</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included.
The example format is as follows. Please make sure the parameter type is correct. If no function call is needed, \
please make the tool calls an empty list '[]'.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
... (more tool calls as required)
]</tool_call>"""
_PLAIN = """\
You can call the functions below; each line describes one, its parameters as JSON Schema.
<tools>
{tools}
</tools>

To call one, write exactly this, once per call, with the function's name and its arguments as a JSON object:
{example}
You then get its result. When no function is needed, just answer."""


def describe_tools(tools: Sequence[Mapping[str, Any]], tool_format: ToolFormat) -> str:
    """What a system message says where the template shows no tools. `tools`: in OpenAI's shape."""
    functions = [tool["function"] for tool in tools]
    if tool_format.name == "smollm2":
        return _SMOLLM2.format(tools=json.dumps(functions, ensure_ascii=False))
    lines = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    return _PLAIN.format(tools=lines, example=_spelled([("NAME", '{"ARGUMENT": "VALUE"}')], tool_format))


def spell_tools(message: Message, traits: TemplateTraits, tool_format: ToolFormat) -> Message:
    """A call or a result as text, where the template would not show it."""
    if message["role"] == "tool" and (tool_format.results_from_user or not traits.renders_tool_results):
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message or traits.renders_tool_calls:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [(f["name"], json.dumps(f["arguments"], ensure_ascii=False)) for f in functions]
    content = "\n".join(filter(None, (message["content"], _spelled(calls, tool_format))))
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def pair_calls(messages: Sequence[Message]) -> list[Message]:
    """Every call with an id and every result with its call's id and name: clients leave them out, templates ask.

    A result without an id is that of the first call that has none yet.
    """
    open_calls: dict[str, str] = {}
    paired: list[Message] = []
    num_calls = 0
    for message in messages:
        if message["role"] == "tool":
            call_id = message.get("tool_call_id") or next(iter(open_calls), "")
            known = {"tool_call_id": call_id or f"call{num_calls:05}"}
            if name := open_calls.pop(call_id, ""):
                known["name"] = name
            message = known | message
        calls = []
        for call in message.get("tool_calls", ()):
            num_calls += 1
            calls.append({"id": f"call{num_calls:05}"} | call)
            open_calls[calls[-1]["id"]] = call["function"]["name"]
        paired.append(message | {"tool_calls": calls} if calls else message)
    return paired


def fit_calls(messages: list[Message], traits: TemplateTraits) -> list[Message]:
    """Calls in the number per turn and with the ids that the template takes."""
    num_calls = [len(message.get("tool_calls", ())) for message in messages]
    if not any(num_calls):
        return messages
    if max(num_calls) > 1 and not traits.renders_two_calls:
        messages = _one_at_a_time(messages)
    if traits.numbers_calls:
        return _number_calls(messages)
    return [_shorten_ids(message) for message in messages] if traits.needs_short_ids else messages


def _spelled(calls: Sequence[tuple[str, str]], tool_format: ToolFormat) -> str:
    shape = tool_format.shape
    branches = shape.structure([{"name": json.dumps(name, ensure_ascii=False)[1:-1]} for name, _ in calls]).branches
    spelled = [branch.begin + arguments + branch.end for branch, (_, arguments) in zip(branches, calls, strict=True)]
    return shape.opening + shape.separator.join(spelled) + shape.closing


def _one_at_a_time(messages: Sequence[Message]) -> list[Message]:
    """Each call of a turn in a turn of its own, before its result; results find their call by id, else by order."""
    split: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            split.append(message)
            continue
        results: list[Message] = []
        while index < len(messages) and messages[index]["role"] == "tool":
            results.append(messages[index])
            index += 1
        for position, call in enumerate(calls):
            split.append(message | {"tool_calls": [call], "content": "" if position else message["content"]})
            if results:
                split.append(results.pop(_place_of(call, results)))
        split += results
    return split


def _place_of(call: Message, results: Sequence[Message]) -> int:
    call_id = call.get("id")
    return next((i for i, result in enumerate(results) if call_id and result.get("tool_call_id") == call_id), 0)


def _number_calls(messages: Sequence[Message]) -> list[Message]:
    numbered: list[Message] = []
    new_ids: dict[str, str] = {}
    number = 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            new_id = _NAMED.format(name=call["function"]["name"], number=number)
            new_ids[call.get("id", "")] = new_id
            calls.append(call | {"id": new_id})
            number += 1
        changed = message | {"tool_calls": calls} if calls else message
        if message.get("tool_call_id") in new_ids:
            changed = changed | {"tool_call_id": new_ids[message["tool_call_id"]]}
        numbered.append(changed)
    return numbered


def _shorten_ids(message: Message) -> Message:
    short = dict(message)
    if "tool_call_id" in message:
        short["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        short["tool_calls"] = [c | {"id": _short_id(c["id"])} if "id" in c else c for c in message["tool_calls"]]
    return short


def _short_id(call_id: str) -> str:
    """Nine characters; the same for a call and its result."""
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
