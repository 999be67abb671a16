"""Calls whose parameters stand between tags, as text: Qwen 3 Coder, GLM 4.5. They become JSON on the way.

A value between tags has no type of its own: the tool's schema says whether it is text. Text goes out as it comes; what
may be a number, a list or an object waits for its end, since only then is known whether it is one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from twinpath.text.answer.cursor import Cursor, Emit
from twinpath.text.answer.json_calls import read_calls
from twinpath.text.answer.output import Output

_MAX_NAME_CHARS = 400
_WORDS = {"True": True, "False": False, "None": None}
Decision = Generator[None, None, bool]


def read_qwen(cursor: Cursor, output: Output) -> Decision:
    """`<function=NAME><parameter=KEY>\\nVALUE\\n</parameter>...</function></tool_call>`; or JSON, as Qwen 3 writes."""
    yield from cursor.skip_blanks()
    if not (yield from cursor.take("<function=")):
        return (yield from read_calls(cursor, output, None))
    name = yield from _name_before(cursor, ">")
    if not name or not (yield from cursor.take(">")):
        return False
    yield from _read_call(cursor, output, name, _QWEN)
    if not output.is_full:
        yield from cursor.take("</function>")
    return True


def read_glm(cursor: Cursor, output: Output) -> Decision:
    """`NAME\\n<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>...</tool_call>`; or JSON."""
    yield from cursor.skip_blanks()
    if (yield from cursor.peek()) in ("{", "["):
        return (yield from read_calls(cursor, output, None))
    name = yield from _name_before(cursor, "\n<")
    yield from cursor.skip_blanks()
    if not name or (yield from cursor.peek()) != "<":
        return False
    yield from _read_call(cursor, output, name, _GLM)
    return True


@dataclass(frozen=True, slots=True)
class _Tags:
    """What stands around keys and values. `framed`: a line break on either side of a value is not part of it."""

    key: str
    key_end: str
    value: str
    value_end: str
    framed: bool


_QWEN = _Tags("<parameter=", ">", "", "</parameter>", framed=True)
_GLM = _Tags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", framed=False)


def _read_call(cursor: Cursor, output: Output, name: str, tags: _Tags) -> Decision:
    cursor.drop()
    output.start_call(name)
    closed = yield from _read_parameters(cursor, output, output.properties_of(name), tags)
    output.end_call()
    return closed


def _read_parameters(cursor: Cursor, output: Output, properties: Mapping[str, Any], tags: _Tags) -> Decision:
    gap = "{"
    while True:
        yield from cursor.skip_blanks()
        if not (yield from cursor.take(tags.key)):
            if gap != "{":
                output.arguments("}")
            return True
        key = yield from _name_before(cursor, tags.key_end[0])
        if not (yield from cursor.take(tags.key_end)):
            return False
        if tags.value:
            yield from cursor.skip_blanks()
            if not (yield from cursor.take(tags.value)):
                return False
        output.arguments(f"{gap}{json.dumps(key, ensure_ascii=False)}: ")
        gap = ", "
        is_text = _is_text(properties.get(key))
        if not (yield from _read_value(cursor, output, tags, is_text=is_text)):
            return False
        yield from cursor.skip_blanks()


def _read_value(cursor: Cursor, output: Output, tags: _Tags, *, is_text: bool) -> Decision:
    if tags.framed:
        yield from cursor.take("\n")
    waiting: list[str] = []
    emit: Emit = (lambda text: output.arguments(_inside(text))) if is_text else waiting.append
    if is_text:
        output.arguments('"')
    hold = _LastBreak(emit)
    mark = yield from cursor.text_before((tags.value_end,), hold if tags.framed else emit, keep_blanks=True)
    if mark is None:
        hold.finish()
    else:
        cursor.pass_mark(mark)
    output.arguments('"' if is_text and mark else "" if is_text else _typed("".join(waiting)))
    return mark is not None


class _LastBreak:
    """Passes text on, but for a line break at its very end."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._held = ""

    def __call__(self, text: str) -> None:
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        if passed := text.removesuffix("\n"):
            self._emit(passed)

    def finish(self) -> None:
        if self._held:
            self._emit(self._held)


def _is_text(schema: Any) -> bool:
    """Whether a value of this schema is text whatever it looks like. Unknown parameters may be anything."""
    if not isinstance(schema, Mapping):
        return False
    kinds = schema.get("type")
    if kinds is None and "enum" in schema and isinstance(schema["enum"], list):
        return all(isinstance(value, str) for value in schema["enum"])
    return kinds == "string"


def _typed(text: str) -> str:
    """JSON as it is, Python's three words, or else text."""
    value = text.strip()
    if value in _WORDS:
        return json.dumps(_WORDS[value])
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return value


def _name_before(cursor: Cursor, ends: str) -> Generator[None, None, str]:
    name = yield from cursor.take_while(lambda character: character not in ends, _MAX_NAME_CHARS)
    return name.strip()


def _inside(text: str) -> str:
    """Text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
