"""SSE over HTTP/2: nginx in front of the server, and a client that speaks HTTP/2 without TLS. Needs `h2` and nginx."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.servers import free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
_CONFIG = """
daemon off; worker_processes 1; pid {home}/nginx.pid; error_log {home}/nginx.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
    upstream twinpath {{ server 127.0.0.1:{upstream}; keepalive 32; }}
    server {{
        listen 127.0.0.1:{port} http2;
        location / {{
            proxy_pass http://twinpath; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


def is_possible() -> bool:
    """Whether nginx and the client's library are there."""
    return NGINX is not None and importlib.util.find_spec("h2") is not None


@contextlib.contextmanager
def http2_before(upstream: int, home: Path) -> Iterator[int]:
    """The port of an nginx that speaks HTTP/2 and passes requests on to `upstream` over kept HTTP/1.1 connections."""
    assert NGINX is not None
    port = free_port()
    config = home / "nginx.conf"
    config.write_text(_CONFIG.format(home=home, port=port, upstream=upstream))
    process = subprocess.Popen([NGINX, "-p", str(home), "-c", str(config)])
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


class Http2Client:
    """/v1/completions over one connection, however many streams there are."""

    def __init__(self, port: int, make_body: Callable[[int], bytes], num_tokens_in: Callable[[bytes], int]) -> None:
        """`make_body(tokens)`: what is sent; `num_tokens_in`: of a piece of the answer."""
        self._port, self._make_body, self._num_tokens_in = port, make_body, num_tokens_in
        self._connection: Any = None
        self._queues: dict[int, asyncio.Queue[bytes | None]] = {}
        self._opening = asyncio.Lock()

    async def stream(self, num_tokens: int) -> AsyncIterator[int]:
        """The number of tokens of each piece as it comes."""
        async with self._opening:
            if self._connection is None:
                await self._open()
        body = self._make_body(num_tokens)
        stream_id = self._connection.get_next_available_stream_id()
        queue = self._queues[stream_id] = asyncio.Queue()
        names = {":method": "POST", ":path": "/v1/completions", ":scheme": "http", ":authority": "x"}
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        self._connection.send_headers(stream_id, [*names.items(), *fields.items()])
        self._connection.send_data(stream_id, body, end_stream=True)
        self._writer.write(self._connection.data_to_send())
        while (piece := await queue.get()) is not None:
            if count := self._num_tokens_in(piece):
                yield count

    async def aclose(self) -> None:
        if self._connection is not None:
            self._reading.cancel()
            self._writer.close()

    async def _open(self) -> None:
        from h2.connection import H2Connection

        for _ in range(100):  # nginx may still be starting
            with contextlib.suppress(ConnectionRefusedError):
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
                break
            await asyncio.sleep(0.05)
        self._connection = H2Connection()
        self._connection.initiate_connection()
        self._connection.increment_flow_control_window(2**30)
        self._writer.write(self._connection.data_to_send())
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        from h2.events import ConnectionTerminated, DataReceived, StreamEnded, StreamReset

        while data := await self._reader.read(65536):
            for event in self._connection.receive_data(data):
                if isinstance(event, DataReceived):
                    self._queues[event.stream_id].put_nowait(event.data)
                    self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded | StreamReset):
                    self._queues.pop(event.stream_id).put_nowait(None)
                elif isinstance(event, ConnectionTerminated):
                    return
            self._writer.write(self._connection.data_to_send())
