"""Reading text that has not all come yet.

Parsers are generators: each `yield` means "nothing can be decided before more text comes". A decision is only ever made
on text that no later text can change the meaning of, so the outcome does not depend on how the text was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

Steps = Generator[None, None, None]
Emit = Callable[[str], None]
BLANKS = " \t\r\n"


class Cursor:
    """A place in a growing text. `keep` holds on to what is read, so that `rewind` can take it back."""

    def __init__(self) -> None:
        self.closed = False
        self._text = ""
        self._at = 0
        self._kept: int | None = None

    def feed(self, text: str) -> None:
        start = self._at if self._kept is None else self._kept
        self._text = self._text[start:] + text
        self._at -= start
        if self._kept is not None:
            self._kept = 0

    def close(self) -> None:
        """No text will follow."""
        self.closed = True

    def keep(self) -> None:
        """What is read from here on can be read again."""
        self._kept = self._at

    def drop(self) -> None:
        """What was read is settled."""
        self._kept = None

    def rewind(self) -> None:
        """Back to where `keep` was called."""
        assert self._kept is not None
        self._at, self._kept = self._kept, None

    @property
    def is_kept(self) -> bool:
        return self._kept is not None

    def waiting(self) -> Generator[None, None, str]:
        """All the text that is there, at least one character; empty at the end of the text."""
        yield from self.peek()
        return self._text[self._at :]

    def peek(self, num_chars: int = 1) -> Generator[None, None, str]:
        """The next characters, fewer at the end of the text."""
        while len(self._text) - self._at < num_chars and not self.closed:
            yield
        return self._text[self._at : self._at + num_chars]

    def skip(self, num_chars: int) -> None:
        """Pass over characters that `peek` has shown."""
        self._at += num_chars

    def take(self, literal: str) -> Generator[None, None, bool]:
        """Pass over `literal` if it comes next."""
        while True:
            have = self._text[self._at : self._at + len(literal)]
            if have == literal:
                self._at += len(literal)
                return True
            if self.closed or not literal.startswith(have):
                return False
            yield

    def skip_blanks(self) -> Steps:
        """Pass over white space, to the next character that is none or the end of the text."""
        yield from self.take_while(lambda character: character in BLANKS)

    def take_while(self, wanted: Callable[[str], bool], most: int | None = None) -> Generator[None, None, str]:
        """Pass over characters that are `wanted`, at most so many."""
        taken: list[str] = []
        while most is None or len(taken) < most:
            character = yield from self.peek()
            if not character or not wanted(character):
                break
            taken.append(character)
            self._at += 1
        return "".join(taken)

    def text_before(
        self, marks: Sequence[str], emit: Emit, *, keep_blanks: bool = False
    ) -> Generator[None, None, str | None]:
        """Emit text up to the first of `marks` and return that one, not passed yet; None when the text ends before one.

        No mark may be another one's beginning. What may become a mark waits. White space directly before a mark is not
        emitted, and so waits too, unless it is to be kept.
        """
        strip = bool(marks) and not keep_blanks
        while True:
            found, start = _first(self._text, self._at, marks)
            if found is not None:
                self._emit_to(start, emit, strip=strip)
                return found
            if self.closed:
                self._emit_to(len(self._text), emit, strip=False)
                return None
            self._emit_to(self._safe_end(marks), emit, strip=strip)
            yield

    def pass_mark(self, mark: str, emit: Emit | None = None) -> None:
        """Pass over the mark that `text_before` found and the white space before it; or emit both as text."""
        start, self._at = self._at, self._text.index(mark, self._at) + len(mark)
        if emit is not None:
            emit(self._text[start : self._at])

    def rest(self, emit: Emit) -> Steps:
        """Emit everything that follows."""
        yield from self.text_before((), emit)

    def _emit_to(self, end: int, emit: Emit, *, strip: bool) -> None:
        text = self._text[self._at : end]
        if strip:
            text = text.rstrip(BLANKS)
        if text:
            emit(text)
            self._at += len(text)

    def _safe_end(self, marks: Sequence[str]) -> int:
        """Where the longest tail begins that may grow into a mark."""
        end = len(self._text)
        places = [end]
        for mark in marks:
            start = self._text.find(mark[0], max(self._at, end - len(mark) + 1))
            while start >= 0 and not mark.startswith(self._text[start:]):
                start = self._text.find(mark[0], start + 1)
            if start >= 0:
                places.append(start)
        return min(places)


def _first(text: str, start: int, marks: Sequence[str]) -> tuple[str | None, int]:
    found, first = None, -1
    for mark in marks:
        place = text.find(mark, start)
        if place >= 0 and (found is None or place < first):
            found, first = mark, place
    return found, first
