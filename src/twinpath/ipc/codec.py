"""Messages to frames and back: a little-endian uint32 byte count, then one msgpack document.

A stream socket and not SOCK_SEQPACKET: a packet is limited by the socket buffer (a 100K-token prompt is half a
megabyte), and macOS has no AF_UNIX SEQPACKET. The length prefix costs four bytes and no measurable time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from twinpath.ipc import messages

_HEADER_BYTES = 4
#: A million-token prompt is ~5 MB; anything near this is a broken peer.
MAX_FRAME_BYTES = 256 * 1024 * 1024

Incoming = TypeVar("Incoming")


class FrameError(Exception):
    """The peer sent bytes that are no message of ours; the channel cannot be used any more."""


class Codec(Generic[Incoming]):
    """Encodes any message, decodes messages of one direction. One instance per thread and end."""

    def __init__(self, incoming: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._buffer = bytearray()

    def encode(self, message: object) -> bytes:
        """One frame, ready to be written."""
        body = self._encoder.encode(message)
        if len(body) > MAX_FRAME_BYTES:
            raise FrameError(f"message of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
        return len(body).to_bytes(_HEADER_BYTES, "little") + body

    def feed(self, data: bytes | memoryview) -> Iterable[Incoming]:
        """All messages completed by `data`, which may start and end anywhere. To be read before the next call.

        Raises: FrameError on an oversized or undecodable frame.
        """
        num_bytes = len(data) - _HEADER_BYTES
        if not self._buffer and num_bytes >= 0 and int.from_bytes(data[:_HEADER_BYTES], "little") == num_bytes:
            return (self._decode(data[_HEADER_BYTES:]),)  # Most reads are one frame.
        self._buffer += data
        return self._frames()

    def _frames(self) -> Iterator[Incoming]:
        buffer = self._buffer
        begin = 0
        while len(buffer) - begin >= _HEADER_BYTES:
            body = begin + _HEADER_BYTES
            num_bytes = int.from_bytes(buffer[begin:body], "little")
            if num_bytes > MAX_FRAME_BYTES:
                raise FrameError(f"frame of {num_bytes} bytes exceeds the limit of {MAX_FRAME_BYTES}")
            if len(buffer) - body < num_bytes:
                break
            begin = body + num_bytes
            yield self._decode(bytes(buffer[body:begin]))
        del buffer[:begin]

    def _decode(self, body: bytes | memoryview) -> Incoming:
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise FrameError(f"undecodable frame of {len(body)} bytes: {error}") from None


def engine_codec() -> Codec[messages.ToEngine]:
    """For the engine's end, which reads ToEngine."""
    return Codec(messages.ToEngine)


def gateway_codec() -> Codec[messages.ToGateway]:
    """For the gateway's end, which reads ToGateway."""
    return Codec(messages.ToGateway)
