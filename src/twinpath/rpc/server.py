"""The listening gRPC server: services, limits, keep-alive policy, drain."""

from __future__ import annotations

import logging
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from twinpath.api.app import Entrance
from twinpath.config import HttpConfig
from twinpath.errors import UserError
from twinpath.rpc import health, wire
from twinpath.rpc.calls import Calls
from twinpath.rpc.health import HealthService
from twinpath.rpc.service import GenerationService

#: Routers ping idle channels every 10 to 30 s; the library's own policy takes two such pings for an attack and hangs
#: up ("too many pings"). The server's pings find clients that vanished without a word.
_KEEPALIVE = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
#: What the last statuses get to be sent, and calls that outlived their grace to end.
FAREWELL_S = 0.5
#: Streams of one channel. More are queued by the client.
MAX_STREAMS = 1000
#: A second server on the same port would get half of the calls.
_NO_PORT_SHARING = ("grpc.so_reuseport", 0)


class RpcServer:
    """Serves one `Entrance` over gRPC, beside HTTP and on the same event loop."""

    def __init__(self, entrance: Entrance, config: HttpConfig) -> None:
        self._calls = Calls(entrance.keys, entrance.report, logging.getLogger("twinpath.rpc"))
        self._health = HealthService(entrance.health)
        self._server = grpc.aio.server(
            options=(
                *_KEEPALIVE,
                _NO_PORT_SHARING,
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.max_receive_message_length", config.max_body_bytes),
            )
        )
        #: Where it listens, once bound.
        self.address = ""
        self._server.add_generic_rpc_handlers((_generation_handler(entrance, self._calls), self._health.handler()))
        reflection.enable_server_reflection((wire.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    def bind(self, host: str, port: int) -> None:
        """Listen; a `port` of 0 is chosen by the system. TLS ends at the proxy in front, as for HTTP.

        Raises: UserError.
        """
        where = f"[{host}]" if ":" in host else host
        try:
            bound = self._server.add_insecure_port(f"{where}:{port}")
        except RuntimeError:
            raise UserError(f"cannot listen for gRPC on {where}:{port}: choose another --grpc-port") from None
        self.address = f"{where}:{bound}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let running ones finish within `grace_s`, end the rest."""
        self._health.drain()
        # Not left to the library, which hangs up on new calls without a word of why.
        await self._calls.drain(grace_s)
        await self._server.stop(min(grace_s, FAREWELL_S))


def _generation_handler(entrance: Entrance, calls: Calls) -> Any:
    service = GenerationService(entrance.door, calls)
    return grpc.method_handlers_generic_handler(
        wire.SERVICE,
        {
            "Generate": grpc.unary_stream_rpc_method_handler(
                service.generate, wire.GenerateRequest.FromString, wire.GenerateResponse.SerializeToString
            ),
            "Chat": grpc.stream_stream_rpc_method_handler(
                service.chat, wire.ChatRequest.FromString, wire.ChatResponse.SerializeToString
            ),
            "Abort": grpc.unary_unary_rpc_method_handler(
                service.abort, wire.AbortRequest.FromString, wire.AbortResponse.SerializeToString
            ),
        },
    )
