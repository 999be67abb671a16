"""Calls written as JSON objects that hold a name and arguments, alone, in a list or one after another."""

from __future__ import annotations

from collections.abc import Generator

from twinpath.text.answer.cursor import Cursor, Steps
from twinpath.text.answer.json_text import copy_string, copy_value, read_string
from twinpath.text.answer.output import Output

_NAME_KEYS = frozenset({"name", "function"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_KNOWN_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"type", "id"}


class TaggedJson:
    """JSON calls between two marks; text elsewhere is content. `bare`: an answer may also begin with a call outside the
    marks or in a code fence, if it names a tool.
    """

    def __init__(self, begin: str, end: str | None, *, bare: bool = False) -> None:
        self._begin = begin
        self._end = end
        self._bare = bare

    @property
    def marks(self) -> tuple[str, ...]:
        return (self._begin, self._end) if self._end else (self._begin,)

    def __call__(self, cursor: Cursor, output: Output) -> Steps:
        if self._bare:
            yield from _bare_calls(cursor, output)
        while not output.is_full:
            mark = yield from cursor.text_before((self._begin,), output.text)
            if mark is None:
                return
            cursor.keep()
            cursor.pass_mark(mark)
            if not (yield from read_calls(cursor, output, None)):
                cursor.rewind()
                cursor.pass_mark(mark, output.text)
                continue
            cursor.drop()
            if not output.is_full:
                yield from self._pass_end(cursor, output)

    def _pass_end(self, cursor: Cursor, output: Output) -> Steps:
        """What stands between a call and the end of its markup is damage; without an end it was text."""
        yield from cursor.skip_blanks()
        if self._end is not None:
            damage: list[str] = []
            mark = yield from cursor.text_before(self.marks, damage.append)
            if mark is None:
                output.text("".join(damage))
            elif mark == self._end:
                cursor.pass_mark(mark)
                yield from cursor.skip_blanks()


def _bare_calls(cursor: Cursor, output: Output) -> Steps:
    cursor.keep()
    yield from cursor.skip_blanks()
    fenced = (yield from cursor.take("```json")) or (yield from cursor.take("```"))
    if not (yield from read_calls(cursor, output, output.tool_names)):
        cursor.rewind()
        return
    cursor.drop()
    if output.is_full:
        return
    yield from cursor.skip_blanks()
    if fenced:
        yield from cursor.take("```")
        yield from cursor.skip_blanks()


def read_calls(cursor: Cursor, output: Output, known: frozenset[str] | None) -> Generator[None, None, bool]:
    """Calls up to what is none. `known`: the names to accept, None is any. False when there was neither a call nor an
    empty list; the cursor then may stand anywhere.
    """
    yield from cursor.skip_blanks()
    in_list = yield from cursor.take("[")
    any_call = False
    while True:
        yield from cursor.skip_blanks()
        character = yield from cursor.peek()
        if character == "{":
            if any_call:
                cursor.keep()
            call = JsonCall(cursor, output, known)
            closed = yield from call.read()
            if not call.started:
                if any_call:
                    cursor.rewind()
                return any_call
            any_call = True
            if not closed or output.is_full:
                return True
        elif any_call and character and character in ",;":
            cursor.skip(1)
        elif in_list and character == "]" and (any_call or known is None):
            cursor.skip(1)
            return True
        else:
            return any_call


class JsonCall:
    """One call. It starts when its name is known; arguments that come before the name wait for it."""

    def __init__(self, cursor: Cursor, output: Output, known: frozenset[str] | None) -> None:
        self.started = False
        self._cursor = cursor
        self._output = output
        self._known = known
        self._early: list[str] = []
        self._has_arguments = False
        #: Name and arguments stand in an object of their own, as in OpenAI's `tool_calls`.
        self._is_nested = False

    def read(self) -> Generator[None, None, bool]:
        """Read the object. False when it is not closed as JSON closes it; a call that has started is ended anyway."""
        closed = yield from self._read_members()
        if self.started:
            self._output.end_call()
        return closed

    def _read_members(self) -> Generator[None, None, bool]:
        cursor = self._cursor
        cursor.skip(1)
        while True:
            yield from cursor.skip_blanks()
            character = yield from cursor.peek()
            if character not in ('"', ",", "}"):
                return False
            cursor.skip(1)
            if character == "}":
                return True
            if character == ",":
                continue
            key = yield from read_string(cursor)
            yield from cursor.skip_blanks()
            if key is None or not (yield from cursor.take(":")):
                return False
            yield from cursor.skip_blanks()
            if not (yield from self._read_value(key)):
                return False

    def _read_value(self, key: str) -> Generator[None, None, bool]:
        cursor = self._cursor
        first = yield from cursor.peek()
        if key in _NAME_KEYS and first == '"' and not self.started:
            cursor.skip(1)
            return self._name((yield from read_string(cursor)))
        if key == "function" and first == "{" and not self.started and not self._is_nested:
            self._is_nested = True
            return (yield from self._read_members())
        if key in _ARGUMENT_KEYS and not self._has_arguments:
            return (yield from self._read_arguments(first))
        if self._known is not None and not self.started and key not in _KNOWN_KEYS:
            return False
        return (yield from copy_value(cursor, _ignore))

    def _read_arguments(self, first: str) -> Generator[None, None, bool]:
        """An object; or a string that holds one, as some models write them; or null, which is none."""
        cursor = self._cursor
        self._has_arguments = True
        if first == '"':
            cursor.skip(1)
            return (yield from copy_string(cursor, self._pass_arguments))
        if first != "n":
            return (yield from copy_value(cursor, self._pass_arguments))
        word: list[str] = []
        complete = yield from copy_value(cursor, word.append)
        if "".join(word) != "null":
            self._pass_arguments("".join(word))
        return complete

    def _name(self, name: str | None) -> bool:
        if not name or (self._known is not None and name not in self._known):
            return False
        self.started = True
        if self._cursor.is_kept:
            self._cursor.drop()
        self._output.start_call(name)
        self._output.arguments("".join(self._early))
        return True

    def _pass_arguments(self, text: str) -> None:
        if self.started:
            self._output.arguments(text)
        else:
            self._early.append(text)


def _ignore(text: str) -> None:
    """For values that mean nothing here."""
