"""One answer's tokens as text and as parts. Stop strings cut here, and so does "one call is enough"."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from twinpath.api.ports import Detokenizer
from twinpath.text import StopMatcher, StopSet
from twinpath.text.answer import AnswerParser, Part, TextDelta


@dataclass(slots=True)
class Passage:
    """What some tokens added. `num_used`: those that count, fewer than given when the answer ended among them."""

    text: str
    parts: list[Part]
    num_used: int
    #: Nothing more is wanted of the engine.
    ended: bool = False


class Transcript:
    """Grows with the answer. Without stop strings and without a parser, text is passed through as it comes."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopSet,
        parser: AnswerParser | None,
        *,
        end_ids: Collection[int],
        min_tokens: int,
    ) -> None:
        #: Tokens of the reasoning, its marks included.
        self.num_reasoning = 0
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops) if stops.has_stops else None
        self._parser = parser
        if parser is not None and self._stops is not None:
            parser.watch(self._stops)
        self._end_ids = frozenset(end_ids)
        self._min_tokens = min_tokens

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return None if self._stops is None else self._stops.matched

    @property
    def num_calls(self) -> int:
        return 0 if self._parser is None else self._parser.num_calls

    def add(self, token_ids: Sequence[int], num_before: int) -> Passage:
        """Text and parts of the next tokens; `num_before` came before them."""
        num_used = len(token_ids)
        if self._stops is None and self._parser is None:
            if not self._end_ids.isdisjoint(token_ids):
                token_ids = [t for t in token_ids if t not in self._end_ids]
            text = self._detokenizer.push(token_ids)
            return Passage(text, _plain(text), num_used)
        passage = Passage("", [], len(token_ids))
        texts: list[str] = []
        for position, token_id in enumerate(token_ids, 1):
            texts.append(self._add_one(token_id, num_before + position))
            if self._is_over():
                passage.num_used, passage.ended = position, True
                break
        passage.text = "".join(texts)
        passage.parts = _plain(passage.text) if self._parser is None else self._parser.take()
        if passage.ended and self._parser is not None:
            passage.parts += self._parser.finish()
        return passage

    def finish(self, *, cut: bool = False) -> Passage:
        """What was held back when the request ended by itself, or was `cut` by its limit."""
        text = self._detokenizer.finish()
        if self._parser is not None:
            self._parser.feed(text)
            return Passage(text, self._parser.finish(cut=cut), 0)
        if self._stops is not None:
            text = (self._stops.push(text) if text else "") + self._stops.finish()
        return Passage(text, _plain(text), 0)

    def _add_one(self, token_id: int, num_output: int) -> str:
        if token_id in self._end_ids:
            return ""
        text = self._detokenizer.push([token_id])
        if self._stops is not None:
            # Before `min_tokens` a stop string is plain text.
            self._stops.is_active = num_output >= self._min_tokens
        if self._parser is None:
            text = self._stops.push(text) if self._stops is not None else text
        else:
            was_reasoning = self._parser.in_reasoning
            self._parser.feed(text)
            self.num_reasoning += was_reasoning or self._parser.in_reasoning
        return text

    def _is_over(self) -> bool:
        return self.matched_stop is not None or (self._parser is not None and self._parser.done)


def _plain(text: str) -> list[Part]:
    return [TextDelta(text)] if text else []
