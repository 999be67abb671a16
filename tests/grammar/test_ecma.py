"""White space in patterns is ECMA 262's, also inside classes."""

from __future__ import annotations

import pytest

from twinpath.grammar import schema_grammar

from .conftest import Sayer

#: Where Unicode and ECMA 262 differ, and where they agree.
NEXT_LINE, NO_BREAK_MARK, BLANK, LETTER = "\u0085", "\ufeff", " ", "x"


@pytest.mark.parametrize(
    ("pattern", "fitting"),
    [
        (r"^\s$", NO_BREAK_MARK + BLANK),
        (r"^\S$", NEXT_LINE + LETTER),
        (r"^[\sx]$", NO_BREAK_MARK + BLANK + LETTER),
        (r"^[\S]$", NEXT_LINE + LETTER),
        (r"^[^\s]$", NEXT_LINE + LETTER),
        (r"^[^\S]$", NO_BREAK_MARK + BLANK),
        (r"^\\s$", ""),
    ],
)
def test_white_space_is_ecmas(sayer: Sayer, pattern: str, fitting: str) -> None:
    grammar = schema_grammar({"type": "string", "pattern": pattern}, strict=True, param="p")
    for character in (NEXT_LINE, NO_BREAK_MARK, BLANK, LETTER):
        constraint = sayer.constraint(grammar)
        text = f'"{character}"'.encode()
        followed = all(constraint.allows(byte, 99) and constraint.accept(byte, 98) for byte in text)
        assert (followed and constraint.error is None) == (character in fitting), (pattern, character)
