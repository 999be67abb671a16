"""Errors as gRPC statuses; what else a client may want to know is in the trailing metadata."""

from __future__ import annotations

from typing import Any

import grpc

from twinpath.errors import RequestError

_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
MAX_DETAIL_CHARS = 2000


def status_of(error: RequestError) -> Any:
    """INVALID_ARGUMENT for every mistake of the caller's that has no status of its own, INTERNAL for ours."""
    unnamed = grpc.StatusCode.INTERNAL if error.status >= 500 else grpc.StatusCode.INVALID_ARGUMENT
    return _CODES.get(error.status, unnamed)


def trailing_metadata(error: RequestError) -> tuple[tuple[str, str], ...]:
    """`twinpath-code`, `twinpath-param` and `retry-after` (seconds), where there is one."""
    pairs = (("twinpath-code", error.code), ("twinpath-param", error.param), ("retry-after", error.retry_after_s))
    return tuple((name, _ascii(str(value))) for name, value in pairs if value is not None)


def details_of(error: RequestError) -> str:
    return error.message[:MAX_DETAIL_CHARS]


def _ascii(value: str) -> str:
    return value.encode("ascii", "replace").decode()
