"""Parts of an answer -> blocks that open, grow and close: the shape that Messages and Responses share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from twinpath.text.answer import Part, ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCallEnd, ToolCallStart

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Block:
    """A run of text, a run of reasoning, or one tool call. `texts` are the pieces so far, a call's arguments too."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    block: Block


Change = Opened | Grown | Closed


class Blocks:
    """Folds parts in order; one block is open at a time. Streams send the changes, whole answers read `done`."""

    def __init__(self) -> None:
        self.done: list[Block] = []
        self._open: Block | None = None

    def push(self, part: Part) -> list[Change]:
        """What one part changes."""
        if isinstance(part, TextDelta):
            return self._grow("text", part.text)
        if isinstance(part, ReasoningDelta):
            return self._grow("reasoning", part.text)
        if isinstance(part, ToolCallStart):
            return [*self._close(), self._begin("call", part.call_id, part.name)]
        if isinstance(part, ToolArgumentsDelta):
            return self._grow("call", part.text)
        assert isinstance(part, ToolCallEnd)
        return self._close()

    def finish(self) -> list[Change]:
        """The end of the answer: it has at least one block, since clients read the first unasked."""
        if self._open is None and not self.done:
            return [self._begin("text"), *self._close()]
        return self._close()

    def _grow(self, kind: Kind, text: str) -> list[Change]:
        if not text:
            return []
        changes: list[Change] = []
        if self._open is None or self._open.kind != kind:
            changes = [*self._close(), self._begin(kind)]
        assert self._open is not None
        self._open.texts.append(text)
        return [*changes, Grown(self._open, text)]

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> Opened:
        self._open = Block(len(self.done), kind, call_id, name)
        return Opened(self._open)

    def _close(self) -> list[Change]:
        if self._open is None:
            return []
        block, self._open = self._open, None
        self.done.append(block)
        return [Closed(block)]
