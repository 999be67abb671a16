"""Headers of a request, by name."""

from __future__ import annotations

import re
from os import urandom

from starlette.types import Scope

#: An id that is safe to echo and to log: printable ASCII without the quote that would end a log field.
_SANE_ID = re.compile(rb"[!#-~]{1,128}")


def header(scope: Scope, name: bytes) -> bytes:
    """First value of the header `name` (lower case), b"" when it is absent."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


def new_nonce() -> str:
    """Random hex that ids are made of."""
    return urandom(16).hex()


def request_id(offered: bytes, nonce: str) -> str:
    """A sane X-Request-ID is the client's to choose; anything else gets one of ours."""
    return offered.decode() if offered and _SANE_ID.fullmatch(offered) else f"req_{nonce}"
