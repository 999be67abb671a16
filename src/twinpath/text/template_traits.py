"""What a chat template can express, found by rendering tiny conversations with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from twinpath.errors import InvalidRequest
from twinpath.text.answer.marked_calls import KIMI_CALL
from twinpath.text.chat_template import ChatTemplate

Message = dict[str, Any]
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
        return self.numbers_calls or any(
            self._shows(_user(), call) for call in (_call({"x": 1}), _as_text(_call({"x": 1})))
        )

    @cached_property
    def renders_two_calls(self) -> bool:
        """In one turn: Llama 3.1's template takes one call only."""
        calls = [*_call({"x": 1})["tool_calls"], *_call({"x": 1}, "call00002", _PROBE + "two")["tool_calls"]]
        both = _call({"x": 1}) | {"tool_calls": calls}
        return self.numbers_calls or any(
            self._shows(_user(), turn, expected=_PROBE + "two") for turn in (both, _as_text(both))
        )

    @cached_property
    def renders_tools(self) -> bool:
        parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
        function = {"name": _PROBE, "description": "x", "parameters": parameters}
        if self._shows(_user(), tools=[{"type": "function", "function": function}]):
            return True
        # A template that wants arguments of its own cannot be probed.
        return "tools" in self.template.source and not self._shows(_user() | {"content": _PROBE})

    @property
    def numbers_calls(self) -> bool:
        """Kimi's template writes ids as they are, and the model knows `functions.NAME:NUMBER`."""
        return KIMI_CALL in self.template.source

    @cached_property
    def needs_short_ids(self) -> bool:
        """Mistral's templates want call ids of exactly nine letters or digits."""
        long_id = _call({"x": 1}, "call_0123456789abcdef")
        return (
            self.renders_tool_calls
            and not self.numbers_calls
            and not any(self._shows(_user(), call) for call in (long_id, _as_text(long_id)))
        )

    @cached_property
    def renders_tool_results(self) -> bool:
        call = _call({"x": 1}) if self.renders_tool_calls else {"role": "assistant", "content": "a"}
        result = {"role": "tool", "content": _PROBE + "r", "tool_call_id": "call00001", "name": "probe"}
        return self._shows(_user(), call, result, expected=_PROBE + "r")

    @property
    def names_developer(self) -> bool:
        return "'developer'" in self.template.source or '"developer"' in self.template.source

    def _shows(self, *messages: Message, expected: str = _PROBE, tools: Sequence[Message] | None = None) -> bool:
        try:
            return expected in self.template.render(messages, tools=tools, add_generation_prompt=True)
        except InvalidRequest:
            return False


def _user() -> Message:
    return {"role": "user", "content": "a"}


def _call(arguments: Any, call_id: str = "call00001", name: str = _PROBE) -> Message:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": call_id, "function": function}],
    }


def _as_text(message: Message) -> Message:
    """The same calls with their arguments as text, for templates that paste them in."""
    calls = message["tool_calls"]
    return message | {"tool_calls": [c | {"function": _text_arguments(c["function"])} for c in calls]}


def _text_arguments(function: Message) -> Message:
    return function | {"arguments": json.dumps(function["arguments"])}
