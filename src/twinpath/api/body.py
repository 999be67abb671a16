"""Reading and decoding request bodies. Whatever is wrong with one is a 400 or 413 in the envelope, and never echoed."""

from __future__ import annotations

import asyncio
import codecs
import re
from typing import TypeVar

import msgspec
from starlette.types import Message, Receive, Scope

from twinpath.api.headers import header
from twinpath.api.large_body import LARGE_BODY_BYTES, decode_large
from twinpath.errors import BodyTooLarge, InvalidRequest, RequestError

T = TypeVar("T")
Body = bytes | bytearray

#: `... - at `$.messages[0].role`` in msgspec's messages: the field goes to the envelope's `param`.
_AT_PATH = re.compile(r"^(.*) - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")


class ClientGone(Exception):
    """The client left, or stopped reading; nothing can be answered. Logged as 499."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def read_body(scope: Scope, receive: Receive, *, limit_bytes: int, idle_timeout_s: float) -> Body:
    """The whole body. One of several pieces is gathered as they come: joining 32 MB at once would stop the loop.

    Raises: BodyTooLarge (at once when Content-Length says so), RequestError 408 when nothing comes, ClientGone.
    """
    extensions = scope.get("extensions", {})
    if "twinpath.whole_body" in extensions:
        whole: bytearray = extensions["twinpath.whole_body"]["body"]
        if len(whole) > limit_bytes:
            raise _too_large(limit_bytes)
        return whole
    declared = header(scope, b"content-length")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise BodyTooLarge(f"The request body has {int(declared)} bytes; at most {limit_bytes} are accepted.")
    body: Body = b""
    while True:
        message = await _next_part(scope, receive, idle_timeout_s)
        if message["type"] == "http.disconnect":
            raise ClientGone("disconnect")
        part = message.get("body", b"")
        if len(body) + len(part) > limit_bytes:
            raise _too_large(limit_bytes)
        if not body:
            body = part
        elif isinstance(body, bytearray):
            body += part
        else:
            body = bytearray(body) + part
        if not message.get("more_body", False):
            return body


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than the {limit_bytes} bytes accepted.")


async def _next_part(scope: Scope, receive: Receive, idle_timeout_s: float) -> Message:
    if "twinpath.whole_body" in scope.get("extensions", ()):
        return await receive()
    try:
        async with asyncio.timeout(idle_timeout_s):
            return await receive()
    except TimeoutError:
        raise RequestError(f"The request body did not arrive within {idle_timeout_s:g} s.", status=408) from None


def check_content_type(scope: Scope) -> None:
    """JSON as it is, or nothing said at all: some scripts send no type. A form or a file is a mistake worth naming."""
    coding = header(scope, b"content-encoding")
    if coding and coding.strip().lower() not in (b"", b"identity"):
        named = coding.strip().lower()[:40].decode("latin-1")
        raise RequestError(f"The request body is encoded ('{named}'); send it without Content-Encoding.", status=415)
    said = header(scope, b"content-type")
    if said in (b"application/json", b""):
        return
    media_type = said.split(b";")[0].strip().lower()
    if media_type and media_type != b"application/json" and not media_type.endswith(b"+json"):
        raise InvalidRequest("The request body must be JSON: send it with Content-Type: application/json.")


def decode_body(body: Body, decoder: msgspec.json.Decoder[T]) -> T:
    """JSON to a request struct.

    Raises: InvalidRequest, `param` naming the field where one is to blame.
    """
    if not body:
        raise InvalidRequest("The request body is empty; a JSON object is expected.")
    try:
        return decoder.decode(body) if len(body) < LARGE_BODY_BYTES else decode_large(body, decoder)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if body[:3] == codecs.BOM_UTF8:  # Windows shells write it before what they save.
            return decode_body(body[3:], decoder)
        raise InvalidRequest(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None


def _invalid_field(message: str) -> InvalidRequest:
    """msgspec says type and limit, never the value: safe to hand on."""
    what, param = message, ""
    if found := _AT_PATH.match(message):
        what, param = found[1], found[2]
    # `[...]` stands for "some key or value of it".
    param = param.removesuffix("[...]")
    if missing := _MISSING.match(what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidRequest(f"'{param}' is required.", param=param)
    if what.startswith("Invalid enum value"):
        what = "this is not one of the values served"
    if not param:
        return InvalidRequest(f"The request body is not valid: {what}.")
    # A dict key may be the client's own text, so the path is cut.
    return InvalidRequest(f"'{param[:120]}' is not valid: {what}.", param=param[:120])
