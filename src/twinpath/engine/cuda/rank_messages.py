"""What rank 0 tells the other ranks, and they it: pickled tuples over a socket pair between processes of one server."""

from __future__ import annotations

import pickle
import select
import socket
import struct
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from twinpath.types import Int32s, StepPlan

_HEADER = struct.Struct("<I")
_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: who the receiver is, and where ranks meet."""

    rank: int
    world: int
    store_port: int


@dataclass(frozen=True, slots=True)
class Start:
    """Lay out a plan and send its inputs; its residual is named by a number, its masks are told with `Launch`."""

    plan: StepPlan
    residual: int | None
    mask_segments: Int32s | None
    #: Words of a mask.
    num_words: int
    #: Residuals that nobody holds any more.
    forgotten: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a plan's next piece. `masks` int32 [num_masks, words] where it samples with them."""

    step_id: int
    masks: Int32s | None


@dataclass(frozen=True, slots=True)
class Finish:
    """Read a plan's results, which must be these: segment index -> token."""

    step_id: int
    tokens: dict[int, int]


@dataclass(frozen=True, slots=True)
class Drop:
    """A plan was interrupted."""

    step_id: int


@dataclass(frozen=True, slots=True)
class Ping:
    """To be answered by the same, once everything before it is done."""

    number: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rank has captured everything and follows from here on."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank ends, and why. `is_user_error`: a setting or the model does not fit."""

    reason: str
    is_user_error: bool


Message = Hello | Start | Launch | Finish | Drop | Ping | Loaded | Failed


class RankClosed(Exception):
    """The other end is gone."""


class RankChannel:
    """One end of a socket pair. `send` from any thread, `receive` from one."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._connection, self._lock = connection, Lock()
        self._received = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Raises: RankClosed."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with self._lock:
                self._connection.sendall(_HEADER.pack(len(data)) + data)
        except OSError:
            raise RankClosed from None

    def receive(self, spin_s: float = 0.0) -> Message:
        """The next message; looks for `spin_s` without sleeping, then waits.

        Raises: RankClosed.
        """
        until_s = monotonic() + spin_s
        while (message := self.take()) is None:
            if monotonic() >= until_s:
                select.select([self._connection], [], [])
        return message

    def take(self) -> Message | None:
        """A message that is here.

        Raises: RankClosed.
        """
        if (message := self._next()) is not None:
            return message
        try:
            data = self._connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            raise RankClosed from None
        if not data:
            raise RankClosed
        self._received += data
        return self._next()

    def close(self) -> None:
        self._connection.close()

    def _next(self) -> Message | None:
        if len(self._received) < _HEADER.size:
            return None
        end = _HEADER.size + _HEADER.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        # Both ends are processes of this server, and nobody else has the socket.
        message: Message = pickle.loads(memoryview(self._received)[_HEADER.size : end])
        del self._received[:end]
        return message
