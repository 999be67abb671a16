"""Parts folded to what a whole answer holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twinpath.text.answer.parts import Part, ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCallStart


@dataclass(frozen=True, slots=True)
class MessageCall:
    """One call of a whole answer; `arguments` is JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """A whole answer. `content` and `reasoning` may be empty."""

    content: str
    reasoning: str
    calls: tuple[MessageCall, ...]

    @staticmethod
    def of(parts: Iterable[Part]) -> Message:
        content: list[str] = []
        reasoning: list[str] = []
        starts: list[ToolCallStart] = []
        arguments: list[list[str]] = []
        for part in parts:
            if isinstance(part, TextDelta):
                content.append(part.text)
            elif isinstance(part, ReasoningDelta):
                reasoning.append(part.text)
            elif isinstance(part, ToolCallStart):
                starts.append(part)
                arguments.append([])
            elif isinstance(part, ToolArgumentsDelta):
                arguments[part.index].append(part.text)
        calls = (
            MessageCall(start.call_id, start.name, "".join(texts))
            for start, texts in zip(starts, arguments, strict=True)
        )
        return Message("".join(content), "".join(reasoning), tuple(calls))
