"""grpc.health.v1 and reflection, as routers and grpcurl ask for them."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rpc.live_rpc import LiveRpc, live_rpc
from twinpath.rpc import wire

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_is_that_of_the_engine(rpc: LiveRpc) -> None:
    stub = health_pb2_grpc.HealthStub(rpc.channel)
    for service in ("", wire.SERVICE):
        assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == SERVING
    await rpc.replica.stop()
    assert (await watch.read()).status == NOT_SERVING
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
    watch.cancel()


async def test_unknown_services_are_not_found(rpc: LiveRpc) -> None:
    stub = health_pb2_grpc.HealthStub(rpc.channel)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_needs_no_key() -> None:
    async with live_rpc(api_keys=("sk-right",)) as rpc:
        stub = health_pb2_grpc.HealthStub(rpc.channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING


async def test_reflection_describes_the_service(rpc: LiveRpc) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(rpc.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=wire.SERVICE),
    ]
    listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(asked))]
    names = {service.name for service in listed.list_services_response.service}
    assert {wire.SERVICE, "grpc.health.v1.Health"} <= names
    [file] = described.file_descriptor_response.file_descriptor_proto
    [service] = descriptor_pb2.FileDescriptorProto.FromString(file).service
    assert [method.name for method in service.method] == ["Generate", "Chat", "Abort"]
