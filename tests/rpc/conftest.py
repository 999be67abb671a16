"""One server per case: a gRPC server lives on the loop of its test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed (the extra twinpath[grpc])")

from rpc.live_rpc import LiveRpc, live_rpc


@pytest.fixture
async def rpc() -> AsyncIterator[LiveRpc]:
    async with live_rpc() as server:
        yield server
