"""What the exchange kernels share: where packets lie, and how many fit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

#: Packets that one counter numbers; a program owns whole regions.
REGION = 512
#: Bytes of a packet: 32 bits of a message and their tag. A word of 8 bytes arrives whole, so no fence is needed.
PACKET_BYTES = 8
#: Packets of one message of the persistent step: eight rows of a wide model.
STEP_PACKETS = 8 * 16_384


@dataclass(frozen=True, slots=True)
class Exchange:
    """One rank's view of everybody's inbox.

    An inbox is int64 [2, world, capacity], zero before the first message: packets by the parity of their tag and by
    sender. Two suffice: whoever sends message n + 2 has received message n + 1, which was sent after n was read.

    Shapes: inboxes int64 [world], addresses of the ranks' inboxes in this process; epochs int32 [capacity / REGION],
        the last message's tag of every region, zero at first. step_inboxes and step_epoch: the same for the persistent
        step, which sends `STEP_PACKETS` at most.
    """

    inboxes: Tensor
    epochs: Tensor
    step_inboxes: Tensor
    step_epoch: Tensor
    rank: int
    world: int
    #: Packets of one sender and parity, a multiple of `REGION`.
    capacity: int


def inbox_bytes(world: int, capacity: int) -> int:
    """Bytes of one rank's inbox."""
    return 2 * world * capacity * PACKET_BYTES
