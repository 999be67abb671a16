"""Formats whose marks are the model's own control tokens: Mistral, Kimi, DeepSeek."""
# ruff: noqa: RUF001  (DeepSeek spells its tokens with wide bars)

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from twinpath.text.answer.cursor import Cursor, Steps
from twinpath.text.answer.json_calls import read_calls
from twinpath.text.answer.json_text import copy_value
from twinpath.text.answer.output import Output

MISTRAL_BEGIN, MISTRAL_ID, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
KIMI_SECTION, KIMI_SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL, KIMI_ARGUMENTS, KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
DEEPSEEK_SECTION, DEEPSEEK_SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DEEPSEEK_CALL, DEEPSEEK_SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
DEEPSEEK_CALL_END = "<｜tool▁call▁end｜>"
#: Longer than any name a request may define, with an id.
_MAX_NAME_CHARS = 400


@dataclass(frozen=True, slots=True)
class MarkedCalls:
    """Calls that `begin` announces. `frame`: marks around them that say nothing more; `inner`: marks inside.

    `read` reads what follows `begin`: False, with nothing put out, when it is no call; then it is text.
    """

    begin: str
    frame: tuple[str, ...]
    inner: tuple[str, ...]
    read: Callable[[Cursor, Output], Generator[None, None, bool]]

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.begin, *self.frame, *self.inner)

    def __call__(self, cursor: Cursor, output: Output) -> Steps:
        while not output.is_full:
            mark = yield from cursor.text_before((self.begin, *self.frame), output.text)
            if mark is None:
                return
            cursor.keep()
            cursor.pass_mark(mark)
            if mark == self.begin and not (yield from self.read(cursor, output)):
                cursor.rewind()
                cursor.pass_mark(mark, output.text)
                continue
            if cursor.is_kept:
                cursor.drop()
            if not output.is_full:
                yield from cursor.skip_blanks()


def read_mistral(cursor: Cursor, output: Output) -> Generator[None, None, bool]:
    """`[{"name": ..., "arguments": ...}, ...]`; since tokeniser v11 `NAME[ARGS]{...}`, v11 with `[CALL_ID]ID` there."""
    yield from cursor.skip_blanks()
    if (yield from cursor.peek()) in ("[", "{"):
        return (yield from read_calls(cursor, output, None))
    name = yield from _name_before(cursor, "[{")
    if (yield from cursor.take(MISTRAL_ID)):
        yield from _name_before(cursor, "[")
    yield from cursor.take(MISTRAL_ARGUMENTS)
    return (yield from _read_arguments(cursor, output, name))


def read_kimi(cursor: Cursor, output: Output) -> Generator[None, None, bool]:
    """`functions.NAME:NUMBER<|tool_call_argument_begin|>{...}`."""
    written_id = yield from _name_before(cursor, "<")
    if not (yield from cursor.take(KIMI_ARGUMENTS)):
        return False
    name, _, _ = written_id.removeprefix("functions.").rpartition(":")
    return (yield from _read_arguments(cursor, output, name or written_id.removeprefix("functions.")))


def read_deepseek(cursor: Cursor, output: Output) -> Generator[None, None, bool]:
    """V3 and R1: `function<sep>NAME` and the arguments in a JSON code fence; since V3.1: `NAME<sep>{...}`."""
    name = yield from _name_before(cursor, "<")
    if not (yield from cursor.take(DEEPSEEK_SEPARATOR)):
        return False
    yield from cursor.skip_blanks()
    if (yield from cursor.peek()) == "{":
        return (yield from _read_arguments(cursor, output, name))
    name = yield from _name_before(cursor, "\n`{<")
    yield from cursor.skip_blanks()
    fenced = (yield from cursor.take("```json")) or (yield from cursor.take("```"))
    started = yield from _read_arguments(cursor, output, name)
    if started and fenced and not output.is_full:
        yield from cursor.skip_blanks()
        yield from cursor.take("```")
    return started


def _name_before(cursor: Cursor, ends: str) -> Generator[None, None, str]:
    name = yield from cursor.take_while(lambda character: character not in ends, _MAX_NAME_CHARS)
    return name.strip()


def _read_arguments(cursor: Cursor, output: Output, name: str) -> Generator[None, None, bool]:
    yield from cursor.skip_blanks()
    if not name or (yield from cursor.peek()) != "{":
        return False
    cursor.drop()
    output.start_call(name)
    yield from copy_value(cursor, output.arguments)
    output.end_call()
    return True
