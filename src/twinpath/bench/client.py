"""A lean HTTP/1.1 load client: asyncio protocols over httptools, one clock read per socket read.

It shares cores with the server it measures, so its own cost matters: a streamed token costs one `data_received`, one
parse and one append.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from twinpath.bench.records import RequestRecord
from twinpath.bench.sse import EventSplitter, decode_completion


class _Exchange:
    """One response being read into a record."""

    def __init__(self, record: RequestRecord, keep_text: bool) -> None:
        self.record = record
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.streamed = False
        self._finished = False
        self._events = EventSplitter()
        self._body = bytearray()
        self._keep_text = keep_text

    def body(self, piece: bytes, now_s: float) -> None:
        if not self.streamed:
            self._body += piece
            return
        for payload in self._events.push(piece):
            if payload == b"[DONE]":
                self._finished = True
            else:
                self._read(payload, now_s)

    def _read(self, payload: bytes, now_s: float) -> None:
        record = self.record
        try:
            completion = decode_completion(payload)
        except msgspec.DecodeError as error:
            record.error = f"unreadable answer: {error}"
            return
        if completion.error is not None:
            record.error = msgspec.json.encode(completion.error).decode()
        for choice in completion.choices:
            if choice.piece:
                record.piece_s.append(now_s)
                if self._keep_text:
                    record.text += choice.piece
            record.finish_reason = choice.finish_reason or record.finish_reason
        if completion.usage is not None:
            usage = completion.usage
            record.prompt_tokens, record.completion_tokens = usage.prompt_tokens, usage.completion_tokens
            record.promise = usage.twinpath
            record.cached_tokens = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0

    def complete(self, now_s: float) -> None:
        record = self.record
        if not self.streamed and self._body:
            self._read(bytes(self._body), now_s)
        if record.status != 200 and not record.error:
            record.error = f"status {record.status}: {bytes(self._body[:200]).decode(errors='replace')}"
        if self.streamed and not self._finished and not record.error:
            record.error = "stream ended without [DONE]"
        self.end()

    def fail(self, reason: str) -> None:
        self.record.error = self.record.error or reason
        self.end()

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Connection(asyncio.Protocol):
    """One socket; carries one exchange at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now_s = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: _Exchange | None = None
        self._transport: asyncio.WriteTransport | None = None
        self.num_bytes_read = 0
        self._reusable = True

    def is_reusable(self) -> bool:
        return self._reusable

    def start(self, head_and_body: bytes, exchange: _Exchange) -> None:
        assert self._transport is not None
        self._exchange = exchange
        self.num_bytes_read = 0
        self._transport.write(head_and_body)

    def close(self) -> None:
        self._reusable = False
        self._exchange = None
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._now_s = self._clock()
        self.num_bytes_read += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._exchange is not None:
                self._exchange.fail(f"not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reusable = False
        if self._exchange is not None:
            self._exchange.fail("connection lost" + (f": {exc}" if exc else ""))
            self._exchange = None

    # httptools calls these, in this order.
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None and name.lower() == b"content-type":
            self._exchange.streamed = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.record.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(body, self._now_s)

    def on_message_complete(self) -> None:
        self._reusable = self._reusable and self._parser.should_keep_alive()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.complete(self._now_s)


class LoadClient:
    """Sends JSON bodies to one server over kept-alive connections, as many as there are requests in flight.

    `send` never raises for what a server or network did: the record says it. Cancelling `send` closes its
    connection, as a vanished client would.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        keep_text: bool = False,
        timeout_s: float = 600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or url.hostname is None:
            raise ValueError(f"base URL must be http(s)://host[:port], got {base_url!r}")
        self._host, self._tls = url.hostname, ssl.create_default_context() if url.scheme == "https" else None
        self._port = url.port or (443 if self._tls else 80)
        self._prefix = url.path.rstrip("/")
        self._fixed = f"Host: {url.netloc}\r\nContent-Type: application/json\r\n" + (
            f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        )
        self._keep_text, self._timeout_s, self.clock = keep_text, timeout_s, clock
        self._idle: list[_Connection] = []
        self.num_connections_opened = 0

    async def send(
        self,
        path: str,
        body: bytes,
        *,
        index: int = 0,
        intended_s: float | None = None,
        headers: Mapping[str, str] = {},
    ) -> RequestRecord:
        """POST `body` and read the answer to its end. `intended_s` defaults to now."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._fixed}{extra}Content-Length: {len(body)}\r\n\r\n"
        record = RequestRecord(index=index, intended_s=intended_s or 0.0)
        try:
            async with asyncio.timeout(self._timeout_s):
                request = head.encode() + body
                if intended_s is None:
                    record.intended_s = self.clock()  # What this client did until here is no server's doing.
                await self._exchange(request, record)
        except (OSError, TimeoutError) as error:
            record.error = (
                f"no answer within {self._timeout_s} s"
                if isinstance(error, TimeoutError)
                else f"{type(error).__name__}: {error}"
            )
        record.done_s = self.clock()
        if record.piece_s:
            record.first_token_s, record.last_token_s = record.piece_s[0], record.piece_s[-1]
        return record

    async def _exchange(self, request: bytes, record: RequestRecord) -> None:
        while True:
            reused = bool(self._idle)
            connection = self._idle.pop() if reused else await self._connect()
            if not connection.is_reusable():
                continue
            exchange = _Exchange(record, self._keep_text)
            record.sent_s = self.clock()
            connection.start(request, exchange)
            try:
                await exchange.done
            except BaseException:
                connection.close()
                raise
            if reused and record.error and connection.num_bytes_read == 0:
                # The server closed a kept connection just as it was used again: not an answer, so once more.
                record.error = ""
                continue
            if connection.is_reusable():
                self._idle.append(connection)
            else:
                connection.close()
            return

    async def _connect(self) -> _Connection:
        self.num_connections_opened += 1
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self.clock), self._host, self._port, ssl=self._tls
        )
        return connection

    async def aclose(self) -> None:
        """Close idle connections; those in use close when their request ends or is cancelled."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)
