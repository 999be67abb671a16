"""uvicorn's request and response cycle with a `send` of our own: one look at the headers, few steps for a body."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


class Cycle(RequestResponseCycle):
    """One request and its answer. Header names are in lower case, as all of this server's are.

    The head goes with the first part of the body, be that empty: one system call, and a client that wakes once.
    """

    _head = b""

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete or self.response_started == (message["type"] == "http.response.start"):
            raise RuntimeError(f"{message['type']} is out of turn")
        if self.response_started:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._send_head(message["status"], [*self.default_headers, *message["headers"]])

    def _send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        for name, value in headers:
            if name == b"content-length":
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"connection":  # uvicorn's own last resort closes.
                self.keep_alive = False
        if self.chunked_encoding is None and status not in (204, 304) and self.scope["method"] != "HEAD":
            self.chunked_encoding = True
            headers.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            headers.append((b"connection", b"close"))
        lines = b"".join([b"%s: %s\r\n" % header for header in headers])
        if lines.count(b"\n") != len(headers):
            raise RuntimeError("a header of the answer holds a line break")
        self._head = STATUS_LINE[status] + lines + b"\r\n"

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if is_last:
                body += b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("the answer is longer than its Content-Length")
        if self._head:
            body, self._head = self._head + body, b""
        self.transport.write(body)
        if is_last:
            self._complete()

    def _complete(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("the answer is shorter than its Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
