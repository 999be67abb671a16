"""The checked-in descriptor is what protoc makes of the schema today."""

from __future__ import annotations

from importlib.resources import files

import pytest
from google.protobuf import descriptor_pb2

from twinpath.rpc import wire


def test_the_descriptor_is_compiled_from_the_schema() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    from twinpath.rpc.compile import compiled

    kept = files("twinpath.rpc").joinpath(wire.DESCRIPTOR_FILE).read_bytes()
    parse = descriptor_pb2.FileDescriptorProto.FromString
    assert parse(kept) == parse(compiled()), "run python -m twinpath.rpc.compile"
