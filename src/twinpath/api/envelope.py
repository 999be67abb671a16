"""The error envelopes, the only shapes in which this server says no: OpenAI's, and Anthropic's on its own paths."""

from __future__ import annotations

import msgspec

from twinpath.errors import ContextOverflow, Overloaded, RequestError

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
    body = ErrorBody(message=_clean(error.message), type=error.type, param=error.param, code=error.code)
    return msgspec.json.encode(ErrorEnvelope(error=body))


class MessagesErrorBody(msgspec.Struct, kw_only=True):
    """What is wrong, in the words of Anthropic's API."""

    type: str
    message: str


class MessagesErrorEnvelope(msgspec.Struct, kw_only=True):
    """Every error body under /v1/messages, and the `error` event of its streams."""

    type: str = "error"
    error: MessagesErrorBody


_MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def messages_envelope(error: RequestError) -> bytes:
    """The error as Anthropic's API has it; its clients compact when they read "prompt is too long"."""
    kind = _MESSAGES_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = error.message
    if isinstance(error, ContextOverflow):
        message = f"prompt is too long: {error.num_tokens} tokens > {error.window_tokens} maximum"
    body = MessagesErrorBody(type=kind, message=_clean(message))
    return msgspec.json.encode(MessagesErrorEnvelope(error=body))


def envelope_on(path: str, error: RequestError) -> bytes:
    """The error in the words of the API that `path` belongs to."""
    return messages_envelope(error) if path.startswith("/v1/messages") else envelope(error)


def error_headers(error: RequestError) -> Headers:
    """Content headers, and `retry-after` where a retry helps."""
    headers: Headers = [(b"content-type", b"application/json")]
    if isinstance(error, Overloaded):
        headers += rate_headers(error)
    if error.retry_after_s:
        headers.append((b"retry-after", str(min(max(error.retry_after_s, 1), MAX_RETRY_AFTER_S)).encode()))
    return headers


def rate_headers(error: Overloaded) -> Headers:
    """In the words that clients of OpenAI's API read."""
    headers: Headers = []
    if error.retry_after_s == 0:
        headers.append((b"x-should-retry", b"false"))
    if (rate := error.rate) is not None:
        for kind, limit, remaining in (
            (b"requests", rate.limit_requests, rate.remaining_requests),
            (b"tokens", rate.limit_tokens, rate.remaining_tokens),
        ):
            headers.append((b"x-ratelimit-limit-" + kind, b"%d" % limit))
            headers.append((b"x-ratelimit-remaining-" + kind, b"%d" % remaining))
            headers.append((b"x-ratelimit-reset-" + kind, b"%.3fs" % rate.reset_s))
    return headers


def internal_error() -> RequestError:
    """What a client hears of a bug: nothing about its inside."""
    error = RequestError("The server failed to answer this request; its log has the details.", status=500)
    error.type, error.code = "server_error", "internal_error"
    return error


def _clean(message: str) -> str:
    return message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()
