"""Every error a user can meet, with its exit code or HTTP status.

TwinpathError
├── UserError                 the command or configuration is wrong (CLI exit code 2)
│   ├── ModelLoadError        a model file is missing, truncated, corrupt, unsupported or mismatched
│   ├── SourceError           a model could not be found, fetched or verified
│   └── NativeBuildError      the native library is absent or cannot run on this machine
├── RequestError              one request is wrong; carries an OpenAI error envelope
│   ├── InvalidRequest        400
│   │   └── ContextOverflow   400, code context_length_exceeded
│   ├── Unauthorized          401
│   ├── ModelNotFound         404, code model_not_found
│   ├── RouteNotFound         404
│   ├── BodyTooLarge          413
│   └── Overloaded            429 or 503, with Retry-After
└── EngineError               the engine failed while it served a request (500 or 503)
"""

from __future__ import annotations

from dataclasses import dataclass


class TwinpathError(Exception):
    """Root of every error twinpath raises on purpose."""


class UserError(TwinpathError):
    """A command-line or configuration mistake: one clear line, exit code 2."""

    exit_code = 2


class ModelLoadError(UserError):
    """A model file cannot be used; the message says which file and what is wrong with it."""


class SourceError(UserError):
    """A model source cannot be resolved, fetched or verified."""


class NativeBuildError(UserError):
    """The native step library is missing, or this machine cannot run it."""


class RequestError(TwinpathError):
    """A request that is refused; maps one to one to the OpenAI error envelope."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class InvalidRequest(RequestError):
    """The body is malformed or asks for something that cannot be served."""


class ContextOverflow(InvalidRequest):
    """The prompt alone does not fit; clients recognise the code and compact."""

    code = "context_length_exceeded"
    #: Of the prompt (at least so many), and of the window it did not fit.
    num_tokens = 0
    window_tokens = 0

    @classmethod
    def of(cls, message: str, *, param: str, num_tokens: int, window_tokens: int) -> ContextOverflow:
        """With both numbers, for the dialects that word it in their own way."""
        error = cls(message, param=param)
        error.num_tokens, error.window_tokens = num_tokens, window_tokens
        return error


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class ModelNotFound(RequestError):
    """The model named in the request is not served here."""

    status = 404
    code = "model_not_found"


class RouteNotFound(RequestError):
    """No such path."""

    status = 404


class BodyTooLarge(RequestError):
    """The body exceeds the configured limit."""

    status = 413


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What the server takes at once, and when there is room again; for rate-limit headers."""

    limit_requests: int
    remaining_requests: int
    limit_tokens: int
    remaining_tokens: int
    reset_s: float


class Overloaded(RequestError):
    """The server cannot take the request now; `retry_after_s` says when to try again, 0 that it is no use."""

    rate: RateLimit | None = None

    status = 429
    type = "overloaded_error"


class EngineError(RequestError):
    """The engine failed, crashed or was restarted while it held the request."""

    status = 500
    type = "server_error"
    code = "engine_error"
