"""Keeps callers from writing control tokens.

A chat template pastes callers' strings between the control tokens it writes itself; afterwards both look alike. So
before rendering, a mark (one noncharacter that occurs nowhere in the request) is put inside everything in the callers'
strings that spells a control token, or that could become one where two strings meet. After rendering, the text is cut
at the control tokens that are still whole, which are the template's own, and the marks are taken out again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from twinpath.errors import InvalidRequest
from twinpath.text.tokenizer import Segment, Tokenizer, well_formed

#: Unicode's noncharacters, then the last private-use plane: nobody writes them on purpose.
_MARKS = tuple(map(chr, chain(range(0xFDD0, 0xFDF0), (0x1FFFE, 0x1FFFF), range(0x10F000, 0x10FFFE))))


class ControlTextGuard:
    """Marks callers' strings and unmarks the rendered prompt, for one tokeniser."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def choose_mark(self, *values: Any) -> str:
        """A character that none of the strings inside `values` holds.

        Raises: InvalidRequest when they hold every candidate.
        """
        used = set(chain.from_iterable(text for value in values for text in _strings(value) if not text.isascii()))
        mark = next((candidate for candidate in _MARKS if candidate not in used), None)
        if mark is None:
            raise InvalidRequest("the messages use every Unicode noncharacter", param="messages")
        return mark

    def protect(self, value: Any, mark: str) -> Any:
        """A copy of a JSON value with every string (keys too) marked where it could act as a control token."""
        return _map_strings(value, lambda text: self._protect_text(text, mark))

    def segments(self, rendered: str, mark: str) -> list[Segment]:
        """The template's control tokens and the text between them, marks removed."""
        found = self._tokenizer.split_special(rendered)
        joined: list[Segment] = []
        for segment in found:
            text = segment.text.replace(mark, "")
            if segment.token_id is not None or text:
                joined.append(Segment(text, segment.token_id))
        return joined

    def _protect_text(self, text: str, mark: str) -> str:
        text = well_formed(text)
        if not any(character in text for character in self._edge_characters):
            return text
        pieces = self._tokenizer.split_special(text)
        if len(pieces) > 1 or (pieces and pieces[0].token_id is not None):
            # After every character: what overlaps this spelling is broken with it.
            text = "".join(p.text if p.token_id is None else mark.join(p.text) + mark for p in pieces)
        return self._break_edges(text, mark)

    def _break_edges(self, text: str, mark: str) -> str:
        """A string may end with the first half of a control token and the next one begin with the second half."""
        longest = max(self._edge_lengths, default=0)
        for length in range(min(longest, len(text)), 1, -1):
            if text[-length:] in self._heads:
                text = text[: 1 - length] + mark + text[1 - length :]
                break
        for length in range(min(longest, len(text)), 1, -1):
            if text[:length] in self._tails:
                return text[:1] + mark + text[1:]
        return text

    @cached_property
    def _edge_characters(self) -> Collection[str]:
        """Text without any of these holds no control token, nor the head, the tail or the middle of one."""
        tokens = [token for token in self._tokenizer.special_tokens if token]
        ends = {token[0] for token in tokens} | {token[-1] for token in tokens}
        return ends | {tail[0] for tail in self._tails if not tail[0].isalnum()}

    @cached_property
    def _edge_lengths(self) -> Collection[int]:
        return {len(part) for part in chain(self._heads, self._tails)}

    @cached_property
    def _heads(self) -> Collection[str]:
        """Proper beginnings of control tokens, two characters or more."""
        return {token[:end] for token in self._tokenizer.special_tokens for end in range(2, len(token))}

    @cached_property
    def _tails(self) -> Collection[str]:
        """Proper ends, two characters or more; and what lies between the first and the last character, if no word."""
        tokens = self._tokenizer.special_tokens
        middles = (token[1:-1] for token in tokens)
        ends = {token[start:] for token in tokens for start in range(1, len(token) - 1)}
        return ends | {middle for middle in middles if len(middle) > 1 and not middle[0].isalnum()}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
