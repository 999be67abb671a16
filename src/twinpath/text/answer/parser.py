"""One answer's parser: reasoning, then content and calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twinpath.text.answer.cursor import Cursor, Steps
from twinpath.text.answer.formats import ToolFormat
from twinpath.text.answer.output import Output
from twinpath.text.answer.parts import Part
from twinpath.text.answer.reasoning import ReasoningMarkers
from twinpath.text.stop import StopMatcher

NO_TOOLS: Mapping[str, Mapping[str, Any]] = {}


def new_call_id() -> str:
    """Unique in every conversation."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How one model writes reasoning and calls."""

    tools: ToolFormat
    #: None: the model shows none.
    reasoning: ReasoningMarkers | None

    @property
    def marks(self) -> tuple[str, ...]:
        """Control tokens among these are shown to the parser; all others leave no text."""
        reasoning = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end)
        return (*self.tools.marks, *reasoning)

    def parser(
        self,
        *,
        tools: Mapping[str, Mapping[str, Any]] = NO_TOOLS,
        max_calls: int | None = None,
        reasoning_open: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> AnswerParser:
        """For one answer. `tools`: schemas of their arguments by name; when empty, nothing is a call.
        `reasoning_open`: the prompt ends inside."""
        output = Output(tools, max_calls, new_id)
        return AnswerParser(self.reasoning, self.tools if tools else None, output, reasoning_open)


class AnswerParser:
    """Text in, parts out, as early as the text allows and the same however it is cut.

    `done`: nothing more is wanted, as many calls as were asked for are complete, or a stop string came in the content.
    What is pushed then is ignored.
    """

    def __init__(
        self, reasoning: ReasoningMarkers | None, tools: ToolFormat | None, output: Output, reasoning_open: bool
    ) -> None:
        self.done = False
        self._cursor = Cursor()
        self._output = output
        self._steps = self._read(reasoning, tools, reasoning_open)
        next(self._steps)

    @property
    def in_reasoning(self) -> bool:
        """The text so far ends inside reasoning."""
        return self._output.in_reasoning

    @property
    def num_calls(self) -> int:
        return self._output.num_calls

    def watch(self, stops: StopMatcher) -> None:
        """Let stop strings end the content. What reasoning and calls hold is no text of the answer and ends nothing."""
        self._output.stops = stops

    def push(self, text: str) -> list[Part]:
        """Parts that `text` completes or continues; neighbours of one kind come as one."""
        self.feed(text)
        return self.take()

    def feed(self, text: str) -> None:
        """`push` whose parts are left for `take`."""
        if text and not self.done:
            self._cursor.feed(text)
            next(self._steps, None)
            self.done = self.done or self._output.has_stopped

    def take(self) -> list[Part]:
        """Parts since the last time."""
        return self._output.take()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """The answer is over: what was held back. `cut`: by a limit; then what may have become markup is nothing, and
        a call that has begun is left open, its arguments as far as they came."""
        if not (self.done or cut):
            self._cursor.close()
            next(self._steps, None)
        self._output.end_text()
        return self.take()

    def _read(self, reasoning: ReasoningMarkers | None, tools: ToolFormat | None, is_open: bool) -> Steps:
        if reasoning is not None:
            yield from reasoning.read(self._cursor, self._output, is_open=is_open)
        if tools is None:
            yield from self._cursor.rest(self._output.text)
        else:
            yield from tools.read(self._cursor, self._output)
            if not self._output.is_full:
                yield from self._cursor.rest(self._output.text)
        self.done = True
