"""Fields that stay JSON text until somebody asks: none of them is worth decoding millions of values for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Raw, Struct

from twinpath.api.schemas import MAX_METADATA_BYTES, MAX_TEMPLATE_KWARGS_BYTES
from twinpath.errors import InvalidRequest

#: Every neutral value is far shorter, blanks included.
_LONGEST_NEUTRAL_BYTES = 256


class _SessionMetadata(Struct):
    session_id: str | None = None


_any_value = msgspec.json.Decoder()
_session_metadata = msgspec.json.Decoder(_SessionMetadata)
_keywords = msgspec.json.Decoder(dict[str, Any] | None)


def asks_for(raw: Raw, neutral: Collection[Any]) -> bool:
    """Whether a field was given and has none of its `neutral` values."""
    text = memoryview(raw)
    if len(text) > _LONGEST_NEUTRAL_BYTES:
        return True
    try:
        value = _any_value.decode(text) if text else None
    except ValueError:
        return True
    return value is not None and value not in neutral


def session_in(metadata: Raw) -> str | None:
    """`session_id` of a request's `metadata`, where there is one in a shape and size that can be."""
    text = memoryview(metadata)
    if not 0 < len(text) <= MAX_METADATA_BYTES:
        return None
    try:
        return _session_metadata.decode(text).session_id
    except ValueError:
        return None


def template_kwargs_in(raw: Raw) -> dict[str, Any] | None:
    """`chat_template_kwargs`, None when not given.

    Raises: InvalidRequest.
    """
    name, text = "chat_template_kwargs", memoryview(raw)
    if not text:
        return None
    if len(text) > MAX_TEMPLATE_KWARGS_BYTES:
        message = f"'{name}' has {len(text)} bytes; at most {MAX_TEMPLATE_KWARGS_BYTES} are accepted."
        raise InvalidRequest(message, param=name)
    try:
        return _keywords.decode(text)
    except ValueError:
        raise InvalidRequest(f"'{name}' is not a JSON object.", param=name) from None
    except RecursionError:
        raise InvalidRequest(f"'{name}' is nested too deeply.", param=name) from None
