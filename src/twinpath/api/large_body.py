"""Bodies with very many token ids, decoded in pieces: one decode of 32 MB would hold the interpreter's lock for 0.5 s.

The array of `prompt` is cut out, decoded by ranges of a thousand bytes with a pause between, and put back. Everything
else of the body is decoded as always.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec

from twinpath.api.schemas import MAX_PROMPTS, Count
from twinpath.errors import InvalidRequest

T = TypeVar("T")

#: Bodies below decode in a few milliseconds.
LARGE_BODY_BYTES = 256 * 1024
#: No window holds more; each costs 40 bytes while it is a Python int.
MAX_PROMPT_IDS = 4 * 1024 * 1024
_KEY = b'"prompt"'
_BEGIN = re.compile(rb"\s*:\s*\[\s*(\[?)\s*(?=[-0-9])")
#: Behind the end of one array of several: the next one, or the end of all.
_NEXT = re.compile(rb"\s*(,\s*\[|\])")
_PIECE_BYTES = 64 * 1024
#: Lets whoever waits for the lock have it: without a pause it is theirs after 5 ms only.
_PAUSE_S = 5e-5
#: Stands for the array that was cut out. No client sends it: the first character is not valid in its own right.
_CUT = "\x00twinpath: prompt ids"
_ids = msgspec.json.Decoder(list[Count])


def decode_large(body: bytes | bytearray, decoder: msgspec.json.Decoder[T]) -> T:
    """As `decoder.decode(body)`, with pauses where `prompt` is a long array of token ids, or of such arrays.

    Raises: what the decoder raises; InvalidRequest when the array holds anything else or too much.
    """
    found = _find(body)
    if found is None:
        return decoder.decode(body)
    begin, end, nested, spans = found
    fields: Any = decoder.decode(body[:begin] + msgspec.json.encode([_CUT]) + body[end:])
    if getattr(fields, "prompt", None) != [_CUT]:
        return decoder.decode(body)  # That was another object's "prompt".
    lists: list[list[Any]] = []
    for span in spans:
        lists.append([])
        for piece in _decode_ids(body, *span):
            lists[-1] += piece
            if sum(map(len, lists)) > MAX_PROMPT_IDS:
                message = f"'prompt' holds more than {MAX_PROMPT_IDS} token ids, which no window does."
                raise InvalidRequest(message, param="prompt")
    fields.prompt = lists if nested else lists[0]
    return cast(T, fields)


def _find(body: bytes | bytearray) -> tuple[int, int, bool, list[tuple[int, int]]] | None:
    """Where the array begins and ends, whether it holds arrays, and the insides of these; None when `prompt` is no
    array of numbers."""
    key = body.find(_KEY)
    if key < 0 or body[key - 1 : key] == b"\\" or (opening := _BEGIN.match(body, key + len(_KEY))) is None:
        return None
    nested, spans, begin = bool(opening[1]), [], opening.end()
    while True:
        end = body.find(b"]", begin)
        if end < 0:
            return None
        spans.append((begin, end))
        if not nested:
            break
        following = _NEXT.match(body, end + 1)
        if following is None or len(spans) > MAX_PROMPTS:
            return None
        begin = end = following.end()
        if following[1] == b"]":
            end -= 1
            break
    return body.index(b"[", key), end + 1, nested, spans


def _decode_ids(body: bytes | bytearray, begin: int, end: int) -> Iterator[list[Any]]:
    """Pieces of `1,2,3`, cut at commas."""
    while begin < end:
        cut = end if end - begin <= _PIECE_BYTES else body.find(b",", begin + _PIECE_BYTES, end)
        cut = end if cut < 0 else cut
        try:
            piece = _ids.decode(b"[" + body[begin:cut] + b"]")
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise InvalidRequest(
                "'prompt' must be a string, strings, token ids, or lists of token ids; not a mixture.", param="prompt"
            ) from None
        yield piece
        begin = cut + 1
        time.sleep(_PAUSE_S)
