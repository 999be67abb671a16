"""Calls written as Python: `[name(key='value', other=[1, None]), ...]`. Literals become JSON on the way."""

from __future__ import annotations

import json
from collections.abc import Generator

from twinpath.text.answer.cursor import Cursor, Steps
from twinpath.text.answer.json_calls import TaggedJson
from twinpath.text.answer.json_text import read_escape
from twinpath.text.answer.output import Output

_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_MAX_NAME_CHARS = 400
#: Deeper than arguments are; Python's own stack is the limit otherwise.
_MAX_DEPTH = 64


class Pythonic:
    """A list of calls at the start of an answer, between optional marks. JSON calls are understood as well."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin = begin
        self._end = end
        self._json = TaggedJson(begin, end, bare=True)

    @property
    def marks(self) -> tuple[str, ...]:
        return (self._begin, self._end)

    def __call__(self, cursor: Cursor, output: Output) -> Steps:
        cursor.keep()
        yield from cursor.skip_blanks()
        yield from cursor.take(self._begin)
        yield from cursor.skip_blanks()
        if (yield from cursor.take("[")) and (yield from self._read_calls(cursor, output)):
            if output.is_full:
                return
            yield from cursor.skip_blanks()
            yield from cursor.take(self._end)
            yield from cursor.skip_blanks()
        else:
            cursor.rewind()
        yield from self._json(cursor, output)

    def _read_calls(self, cursor: Cursor, output: Output) -> Generator[None, None, bool]:
        """Calls to the closing bracket. False, with nothing put out, when the first is none of a known tool."""
        any_call = False
        while True:
            yield from cursor.skip_blanks()
            name = yield from cursor.take_while(lambda character: character not in "([,]='\"{ \n", _MAX_NAME_CHARS)
            is_call = name in output.tool_names and (yield from cursor.take("("))
            if not is_call:
                if any_call:
                    yield from cursor.take("]")
                return any_call
            if not any_call:
                cursor.drop()
            any_call = True
            output.start_call(name)
            complete = yield from _read_keywords(cursor, output)
            output.end_call()
            yield from cursor.skip_blanks()
            if not complete or output.is_full or not (yield from cursor.take(",")):
                if complete and not output.is_full:
                    yield from cursor.take("]")
                return True


def _read_keywords(cursor: Cursor, output: Output) -> Generator[None, None, bool]:
    """`key=value, ...)` as a JSON object. False when it is damaged; what was put out then is cut where that begins."""
    gap = "{"
    while True:
        yield from cursor.skip_blanks()
        if (yield from cursor.take(")")):
            output.arguments("{}" if gap == "{" else "}")
            return True
        if gap == ", " and not (yield from cursor.take(",")):
            return False
        yield from cursor.skip_blanks()
        key = yield from cursor.take_while(lambda character: character.isalnum() or character == "_")
        yield from cursor.skip_blanks()
        if not key:
            # A comma may end the list.
            if gap == ", " and (yield from cursor.take(")")):
                output.arguments("}")
                return True
            return False
        if not (yield from cursor.take("=")):
            return False
        output.arguments(gap + json.dumps(key, ensure_ascii=False) + ": ")
        gap = ", "
        if not (yield from _read_value(cursor, output, 0)):
            return False


def _read_value(cursor: Cursor, output: Output, depth: int) -> Generator[None, None, bool]:
    yield from cursor.skip_blanks()
    first = yield from cursor.peek()
    if not first or depth > _MAX_DEPTH:
        return False
    if first in "'\"":
        return (yield from _read_string(cursor, output))
    if first in _CLOSERS:
        return (yield from _read_items(cursor, output, first, depth))
    word = yield from cursor.take_while(lambda character: character not in ",)]}: \n", _MAX_NAME_CHARS)
    output.arguments(_WORDS.get(word, word))
    return bool(word)


def _read_items(cursor: Cursor, output: Output, opener: str, depth: int) -> Generator[None, None, bool]:
    cursor.skip(1)
    is_map = opener == "{"
    output.arguments("{" if is_map else "[")
    first = True
    while True:
        yield from cursor.skip_blanks()
        if (yield from cursor.take(_CLOSERS[opener])):
            output.arguments("}" if is_map else "]")
            return True
        if not first:
            if not (yield from cursor.take(",")):
                return False
            yield from cursor.skip_blanks()
            if (yield from cursor.take(_CLOSERS[opener])):
                output.arguments("}" if is_map else "]")
                return True
            output.arguments(", ")
        first = False
        if not (yield from _read_value(cursor, output, depth + 1)):
            return False
        if is_map:
            yield from cursor.skip_blanks()
            if not (yield from cursor.take(":")):
                return False
            output.arguments(": ")
            if not (yield from _read_value(cursor, output, depth + 1)):
                return False


def _read_string(cursor: Cursor, output: Output) -> Generator[None, None, bool]:
    quote = yield from cursor.peek()
    cursor.skip(1)
    output.arguments('"')
    while chunk := (yield from cursor.waiting()):
        end = next((index for index, character in enumerate(chunk) if character in (quote, "\\")), len(chunk))
        if end:
            cursor.skip(end)
            output.arguments(_inside(chunk[:end]))
        elif chunk[0] == quote:
            cursor.skip(1)
            output.arguments('"')
            return True
        else:
            output.arguments(_inside((yield from read_escape(cursor))))
    return False


def _inside(text: str) -> str:
    """Text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
