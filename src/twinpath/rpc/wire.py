"""The protobuf messages, built from the checked-in descriptor.

Code that protoc generates runs with its own and the next major version of the protobuf runtime only; a descriptor runs
with all of them, so the extra needs no upper bound. `python -m twinpath.rpc.compile` makes it from `generation.proto`,
and a test compares the two.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DESCRIPTOR_FILE = "generation.binpb"
SERVICE = "twinpath.v1.Generation"


def _message_classes() -> dict[str, Any]:
    description = descriptor_pb2.FileDescriptorProto.FromString(
        files("twinpath.rpc").joinpath(DESCRIPTOR_FILE).read_bytes()
    )
    # The default pool, since reflection looks there.
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(description.SerializeToString())
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{description.package}.{message.name}")
        )
        for message in description.message_type
    }


_classes = _message_classes()

#: Messages are made at run time, so their types are not known to a type checker; `bodies` and `answers` are the only
#: modules that read and write them.
GenerateRequest: Any = _classes["GenerateRequest"]
GenerateResponse: Any = _classes["GenerateResponse"]
ChatRequest: Any = _classes["ChatRequest"]
ChatResponse: Any = _classes["ChatResponse"]
AbortRequest: Any = _classes["AbortRequest"]
AbortResponse: Any = _classes["AbortResponse"]
Finish: Any = _classes["Finish"]
ToolArguments: Any = _classes["ToolArguments"]
ToolCallStart: Any = _classes["ToolCallStart"]
TokenLogprob: Any = _classes["TokenLogprob"]
TopLogprob: Any = _classes["TopLogprob"]
Usage: Any = _classes["Usage"]
