"""Patterns of JSON Schema are ECMA 262's: where a class means something else to the engine, it is spelled out."""

from __future__ import annotations

#: White space and line ends. Unicode's, which the engine means, has U+0085 and not U+FEFF.
_SPACES = "\\t\\n\\x0B\\x0C\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"


def with_ecma_spaces(pattern: str) -> str:
    r"""`\s` and `\S` as the sets that they are; the rest as it stands."""
    out: list[str] = []
    in_class = False
    position = 0
    while position < len(pattern):
        piece = pattern[position : position + 2] if pattern[position] == "\\" else pattern[position]
        position += len(piece)
        if piece == "\\s":
            out.append(_SPACES if in_class else f"[{_SPACES}]")
        elif piece == "\\S":
            out.append(f"[^{_SPACES}]")  # In a class, a class of its own: the engine takes one in another.
        else:
            in_class = piece == "[" or (in_class and piece != "]")
            out.append(piece)
    return "".join(out)
