"""Answers without the app: to heads that cannot be used, and to connections there is no room for. They carry what every
answer does: the envelope of their API, the request's id, and leave for web pages to read them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from twinpath.api.cors import OriginRule
from twinpath.api.envelope import Headers, envelope_on, error_headers
from twinpath.api.headers import new_nonce, request_id
from twinpath.errors import RequestError

#: What is looked for in a head that the parser gave up.
_LINE = re.compile(rb"^(?P<name>origin|x-request-id):(?P<value>[^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_REQUEST_LINE = re.compile(rb"^(?P<method>[!#-'*+.^-z|~0-9A-Z-]{1,32}) (?P<url>[!-~]+) HTTP/1\.[01]\r?$", re.MULTILINE)
#: Of a head, so much is looked through.
_READ_BYTES = 64 * 1024


def unread_head(data: bytes) -> tuple[bytes, bytes, Headers]:
    """Method, target and the headers that matter here of a head at the end of `data` that the parser gave up; empty
    where there is none."""
    text = data[-_READ_BYTES:]
    lines = list(_REQUEST_LINE.finditer(text))
    begin = lines[-1].end() if lines else 0
    headers = [(match["name"].lower(), match["value"].strip()) for match in _LINE.finditer(text, begin)]
    return (lines[-1]["method"], lines[-1]["url"], headers) if lines else (b"", b"", headers)


def refusal(error: RequestError, url: bytes, headers: Iterable[tuple[bytes, bytes]], rule: OriginRule) -> bytes:
    """The whole answer, after which the connection closes. `url`, `headers`: of the request, as far as known."""
    known = dict(reversed(list(headers)))
    body = envelope_on(url.decode("latin-1"), error)
    lines = [
        *error_headers(error),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id(known.get(b"x-request-id", b""), new_nonce()).encode()),
        *rule.headers(known.get(b"origin", b"")),
        (b"connection", b"close"),
    ]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in lines)
    return STATUS_LINE[error.status] + head + b"\r\n" + body
