"""grpc.health.v1: what /health/ready says, in the shape that probes and routers ask for."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from twinpath.api.plain_routes import HealthChecks
from twinpath.rpc.calls import Context
from twinpath.rpc.wire import SERVICE

SERVICE_NAME = "grpc.health.v1.Health"
#: How often a watched state is looked at.
WATCH_S = 0.5
_Status = health_pb2.HealthCheckResponse


class HealthService:
    """Needs no key. The server as a whole ("") and the Generation service are known; they are ready together."""

    def __init__(self, health: HealthChecks) -> None:
        self._health = health
        self._draining = False

    def drain(self) -> None:
        """Not serving from now on, so that routers look elsewhere."""
        self._draining = True

    async def check(self, request: Any, context: Context) -> Any:
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no such service here.")
        return _Status(status=self._status())

    async def watch(self, request: Any, context: Context) -> None:
        """The state now, then each change, until the client leaves."""
        known = request.service in ("", SERVICE)
        last = None
        while True:
            status = self._status() if known else _Status.SERVICE_UNKNOWN
            if status != last:
                await context.write(_Status(status=status))
                last = status
            await asyncio.sleep(WATCH_S)

    def handler(self) -> Any:
        request, answer = health_pb2.HealthCheckRequest.FromString, _Status.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, request, answer),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, request, answer),
            },
        )

    def _status(self) -> int:
        ready = not self._draining and self._health.readiness() == "ok"
        return int(_Status.SERVING if ready else _Status.NOT_SERVING)
