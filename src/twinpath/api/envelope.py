"""The OpenAI error envelope, the only shape in which this server says no."""

from __future__ import annotations

import msgspec

from twinpath.errors import RequestError

#: openai-python gives up waiting above two minutes.
MAX_RETRY_AFTER_S = 120
MAX_MESSAGE_CHARS = 2000
Headers = list[tuple[bytes, bytes]]


class ErrorBody(msgspec.Struct, kw_only=True):
    """What is wrong, for a person (`message`) and for a program (`type`, `param`, `code`)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, kw_only=True):
    """Every error body, on every path, and the error event of a started stream."""

    error: ErrorBody


def envelope(error: RequestError) -> bytes:
    """The error as JSON: under 8 KiB, strict UTF-8."""
    message = error.message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()
    body = ErrorBody(message=message, type=error.type, param=error.param, code=error.code)
    return msgspec.json.encode(ErrorEnvelope(error=body))


def error_headers(error: RequestError) -> Headers:
    """Content headers, and `retry-after` where a retry helps."""
    headers: Headers = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(min(max(error.retry_after_s, 1), MAX_RETRY_AFTER_S)).encode()))
    return headers


def internal_error() -> RequestError:
    """What a client hears of a bug: nothing about its inside."""
    error = RequestError("The server failed to answer this request; its log has the details.", status=500)
    error.type, error.code = "server_error", "internal_error"
    return error
