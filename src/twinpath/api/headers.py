"""Headers of a request, by name."""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> bytes:
    """First value of the header `name` (lower case), b"" when it is absent."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""
