"""`python -m twinpath.rpc.compile`: generation.proto -> the descriptor that `wire` reads. Needs grpcio-tools."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from twinpath.rpc.wire import DESCRIPTOR_FILE

HERE = Path(__file__).parent


def compiled() -> bytes:
    """The serialised FileDescriptorProto of generation.proto, comments left out."""
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set.binpb"
        status = protoc.main(["protoc", f"-I{HERE}", f"--descriptor_set_out={out}", "generation.proto"])
        if status:
            sys.exit(status)
        [description] = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    serialized: bytes = description.SerializeToString(deterministic=True)
    return serialized


if __name__ == "__main__":
    (HERE / DESCRIPTOR_FILE).write_bytes(compiled())
