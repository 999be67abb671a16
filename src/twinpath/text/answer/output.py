"""Where parsers put what they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twinpath.text.answer.parts import Part, ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCallEnd, ToolCallStart
from twinpath.text.stop import StopMatcher


class Output:
    """Parts of one answer, numbered and joined; `take` empties it.

    `tools`: schemas of their arguments by name; a call without markup of its own must name one of them. `max_calls`:
    None is no limit.
    """

    def __init__(
        self, tools: Mapping[str, Mapping[str, Any]], max_calls: int | None, new_id: Callable[[], str]
    ) -> None:
        self.tool_names = frozenset(tools)
        self._tools = tools
        self.num_calls = 0
        #: The text so far ends inside reasoning.
        self.in_reasoning = False
        #: Looks at content alone; after its match nothing more is put out.
        self.stops: StopMatcher | None = None
        self._max_calls = max_calls
        self._new_id = new_id
        self._parts: list[Part] = []
        self._has_arguments = False
        self._has_text = False
        #: Calls came since the last text: what follows is a paragraph of its own.
        self._after_call = False

    @property
    def is_full(self) -> bool:
        """As many calls as the caller wants are complete."""
        return self._max_calls is not None and self.num_calls >= self._max_calls

    @property
    def has_stopped(self) -> bool:
        """A stop string has come."""
        return self.stops is not None and self.stops.matched is not None

    def properties_of(self, name: str) -> Mapping[str, Any]:
        """Schemas of a tool's parameters, where they are listed."""
        properties = self._tools.get(name, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def text(self, text: str) -> None:
        self._put_text(text if self.stops is None else self.stops.push(text))

    def end_text(self) -> None:
        """Something else follows, or nothing: what may have become a stop string is text."""
        if self.stops is not None:
            self._put_text(self.stops.finish())

    def _put_text(self, text: str) -> None:
        if not text:
            return
        if self._after_call and self._has_text:
            text = "\n\n" + text
        self._has_text, self._after_call = True, False
        last = self._parts[-1] if self._parts else None
        if isinstance(last, TextDelta):
            self._parts[-1] = TextDelta(last.text + text)
        else:
            self._parts.append(TextDelta(text))

    def reasoning(self, text: str) -> None:
        if self.has_stopped:
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ReasoningDelta):
            self._parts[-1] = ReasoningDelta(last.text + text)
        else:
            self._parts.append(ReasoningDelta(text))

    def start_call(self, name: str) -> None:
        self.end_text()
        if self.has_stopped:
            return
        self._has_arguments, self._after_call = False, True
        self._parts.append(ToolCallStart(self.num_calls, self._new_id(), name))

    def arguments(self, text: str) -> None:
        if not text or self.has_stopped:
            return
        self._has_arguments = True
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ToolArgumentsDelta):
            self._parts[-1] = ToolArgumentsDelta(last.index, last.text + text)
        else:
            self._parts.append(ToolArgumentsDelta(self.num_calls, text))

    def end_call(self) -> None:
        """A call without arguments gets the empty object: clients parse them unasked."""
        if self.has_stopped:
            return
        if not self._has_arguments:
            self.arguments("{}")
        self._parts.append(ToolCallEnd(self.num_calls))
        self.num_calls += 1
