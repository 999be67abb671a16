"""OpenAI-style messages -> what chat templates can read.

Input: plain dicts whose schema `api` has checked. Rules, in this order:
  1. content: null, missing and `[]` become ""; text parts are joined; no key is ever None, so "None" is never rendered.
  2. role `developer` is `system` unless the template names it; legacy `function` is `tool`.
  3. tool call arguments become an object when they parse as one; otherwise the text stays as it is.
  4. What the template cannot express is said in words it can (see `TemplateTraits`):
     - tool calls of a template that ignores them are appended to the content as `<tool_call>` JSON lines;
     - call ids get nine characters where it insists on that;
     - tool results become user messages in `<tool_response>`;
     - system messages that it would refuse or drop where they stand are joined, in order, to one system message at the
       front (or, when it knows no system role at all, to the first user message), a blank line between them;
     - neighbours of one role that it refuses are joined the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from twinpath.errors import InvalidRequest
from twinpath.text.chat_template import ChatTemplate

Message = dict[str, Any]
_GAP = "\n\n"
#: Letters only, so that no template changes it on the way to the output.
_PROBE = "Qzprobeq"


@dataclass(frozen=True)
class TemplateTraits:
    """What a template can express, found by rendering tiny conversations with it (each at most once)."""

    template: ChatTemplate

    @cached_property
    def renders_system(self) -> bool:
        return self._shows({"role": "system", "content": _PROBE}, _user())

    @cached_property
    def renders_late_system(self) -> bool:
        """Wherever it stands: templates that only count turns take one in an assistant's place."""
        system = {"role": "system", "content": _PROBE}
        answer = {"role": "assistant", "content": "a"}
        return self._shows(_user(), system, _user()) and self._shows(_user(), answer, system, _user())

    @cached_property
    def renders_two_systems(self) -> bool:
        return self._shows({"role": "system", "content": "a"}, {"role": "system", "content": _PROBE}, _user())

    @cached_property
    def renders_neighbours(self) -> bool:
        return self._shows(_user(), {"role": "user", "content": _PROBE})

    @cached_property
    def renders_tool_calls(self) -> bool:
        return any(self._shows(_user(), call) for call in (_call({"x": 1}), _as_text(_call({"x": 1}))))

    @cached_property
    def needs_short_ids(self) -> bool:
        """Mistral's templates want call ids of exactly nine letters or digits."""
        long_id = _call({"x": 1}, "call_0123456789abcdef")
        return self.renders_tool_calls and not any(self._shows(_user(), call) for call in (long_id, _as_text(long_id)))

    @cached_property
    def renders_tool_results(self) -> bool:
        call = _call({"x": 1}) if self.renders_tool_calls else {"role": "assistant", "content": "a"}
        result = {"role": "tool", "content": _PROBE + "r", "tool_call_id": "call00001", "name": "probe"}
        return self._shows(_user(), call, result, expected=_PROBE + "r")

    @property
    def names_developer(self) -> bool:
        return "'developer'" in self.template.source or '"developer"' in self.template.source

    def _shows(self, *messages: Message, expected: str = _PROBE) -> bool:
        try:
            return expected in self.template.render(messages, add_generation_prompt=True)
        except InvalidRequest:
            return False


def normalize(messages: Iterable[Mapping[str, Any]], traits: TemplateTraits) -> list[Message]:
    """Messages as the template of `traits` can render them; the input is not changed."""
    plain = [_plain(message, traits) for message in messages]
    plain = [_spell_tools(message, traits) for message in plain]
    if any("tool_calls" in message for message in plain) and traits.needs_short_ids:
        plain = [_shorten_ids(message) for message in plain]
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


def _spell_tools(message: Message, traits: TemplateTraits) -> Message:
    if message["role"] == "tool" and not traits.renders_tool_results:
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message or traits.renders_tool_calls:
        return message
    lines = [f"<tool_call>\n{_call_json(call)}\n</tool_call>" for call in message["tool_calls"]]
    content = "\n".join([text for text in (message["content"],) if text] + lines)
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


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


def _call_json(call: Message) -> str:
    function = call["function"]
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)


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


def _user() -> Message:
    return {"role": "user", "content": "a"}


def _call(arguments: Any, call_id: str = "call00001") -> Message:
    function = {"name": _PROBE, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": call_id, "function": function}],
    }


def _as_text(message: Message) -> Message:
    """The same call with its arguments as text, for templates that paste them in."""
    [call] = message["tool_calls"]
    function = call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}
    return message | {"tool_calls": [call | {"function": function}]}
