"""Reasoning before the answer, between two marks."""

from __future__ import annotations

from dataclasses import dataclass

from twinpath.text.answer.cursor import Cursor, Steps
from twinpath.text.answer.output import Output


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The marks of one family. Only what an answer begins with is reasoning; a mark further on is text."""

    name: str
    begin: str
    end: str

    def read(self, cursor: Cursor, output: Output, *, is_open: bool) -> Steps:
        """Reasoning, if there is some, up to its end mark. `is_open`: the prompt has written the begin mark.

        White space around the marks is dropped.
        """
        output.in_reasoning = is_open
        if not is_open:
            cursor.keep()
            yield from cursor.skip_blanks()
            if not (yield from cursor.take(self.begin)):
                cursor.rewind()
                return
            cursor.drop()
            output.in_reasoning = True
        yield from cursor.skip_blanks()
        mark = yield from cursor.text_before((self.end,), output.reasoning)
        if mark is not None:
            cursor.pass_mark(mark)
            output.in_reasoning = False
            yield from cursor.skip_blanks()


#: think: Qwen 3, QwQ, DeepSeek R1 and V3.1, SmolLM3, Kimi K2 Thinking (their chat templates).
#: mistral: Magistral since 2507 (mistral-common, tokeniser v13). kimi: Kimi-VL Thinking. seed: Seed-OSS.
REASONING_FORMATS = {
    markers.name: markers
    for markers in (
        ReasoningMarkers("think", "<think>", "</think>"),
        ReasoningMarkers("mistral", "[THINK]", "[/THINK]"),
        ReasoningMarkers("kimi", "◁think▷", "◁/think▷"),
        ReasoningMarkers("seed", "<seed:think>", "</seed:think>"),
    )
}
