"""JSON in a text that has not all come yet: values are copied as they are written, strings are decoded."""

from __future__ import annotations

import re
from collections.abc import Generator

from twinpath.text.answer.cursor import BLANKS, Cursor, Emit

_PLAIN = re.compile(r'[^"\\]*')
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_UNKNOWN = "\ufffd"


def copy_value(cursor: Cursor, emit: Emit) -> Generator[None, None, bool]:
    """Copy one value, well formed or not, up to the bracket or quote that closes it; a bare word up to what cannot be
    one. False when it is not closed: the text ended, or a `<` came outside a string (it begins a mark).
    """
    depth, in_string, escaped, seen = 0, False, False, False
    while chunk := (yield from cursor.waiting()):
        for index, character in enumerate(chunk):
            if in_string:
                if escaped:
                    escaped = False
                elif character == "\\":
                    escaped = True
                elif character == '"':
                    in_string = False
            elif character == '"':
                in_string = True
            elif character in "{[":
                depth += 1
            elif character == "<" or (not depth and character in "}],;" + BLANKS):
                _pass(cursor, chunk[:index], emit)
                return not depth and seen
            elif character in "}]":
                depth -= 1
            elif not depth:
                seen = True
                continue
            else:
                continue
            seen = True
            if not depth and not in_string and character in '}]"':
                _pass(cursor, chunk[: index + 1], emit)
                return True
        _pass(cursor, chunk, emit)
    return not depth and not in_string and seen


def copy_string(cursor: Cursor, emit: Emit) -> Generator[None, None, bool]:
    """Decode the string whose opening quote was passed, and pass over the closing one. False when there is none."""
    while chunk := (yield from cursor.waiting()):
        found = _PLAIN.match(chunk)
        assert found is not None
        _pass(cursor, found[0], emit)
        if found.end() == len(chunk):
            continue
        if chunk[found.end()] == '"':
            cursor.skip(1)
            return True
        emit((yield from read_escape(cursor)))
    return False


def read_string(cursor: Cursor) -> Generator[None, None, str | None]:
    """The whole string whose opening quote was passed; None when it never ends."""
    pieces: list[str] = []
    closed = yield from copy_string(cursor, pieces.append)
    return "".join(pieces) if closed else None


def read_escape(cursor: Cursor) -> Generator[None, None, str]:
    """The character behind a backslash escape. What JSON does not know stands for itself."""
    escape = yield from cursor.peek(2)
    if escape != "\\u":
        cursor.skip(len(escape))
        return _ESCAPES.get(escape[1:], escape[1:])
    digits = (yield from cursor.peek(6))[2:]
    if not _HEX.fullmatch(digits):
        cursor.skip(2)
        return "u"
    cursor.skip(6)
    code = int(digits, 16)
    if 0xD800 <= code < 0xDC00:
        low = yield from cursor.peek(6)
        if low.startswith("\\u") and _HEX.fullmatch(low[2:]) and 0xDC00 <= int(low[2:], 16) < 0xE000:
            cursor.skip(6)
            return chr(0x10000 + ((code - 0xD800) << 10) + int(low[2:], 16) - 0xDC00)
    # Half a character cannot be written in UTF-8.
    return _UNKNOWN if 0xD800 <= code < 0xE000 else chr(code)


def _pass(cursor: Cursor, text: str, emit: Emit) -> None:
    cursor.skip(len(text))
    if text:
        emit(text)
