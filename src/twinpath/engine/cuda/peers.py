"""Memory that other processes' kernels write into: CUDA's interprocess handles, also between ranks on one card."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from twinpath.engine.cuda.shards import Shard
from twinpath.kernels.all_reduce.spec import REGION, STEP_PACKETS, Exchange, inbox_bytes
from twinpath.kernels.nvrtc import CudaError, checked

#: Packets of one message: eight rows of half a vocabulary of 128K.
_CAPACITY = 1 << 19


class Store(Protocol):
    """What ranks tell each other at start; `get` waits for it."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


def open_exchange(store: Store, shard: Shard, device: torch.device, capacity: int = _CAPACITY) -> Exchange | None:
    """Allocate this rank's inbox and open everybody's. They live as long as the process.

    None: another rank's memory cannot be opened (containers that are kept apart, for one).
    """
    from cuda.bindings import driver  # Comes with torch's CUDA build only.

    torch.cuda.current_stream(device).synchronize()  # Makes the device's context current in this thread.
    step_at = inbox_bytes(shard.world, capacity)
    num_bytes = step_at + inbox_bytes(shard.world, STEP_PACKETS)
    own = checked("cuMemAlloc", driver.cuMemAlloc(num_bytes))
    checked("cuMemsetD8", driver.cuMemsetD8(own, 0, num_bytes))
    checked("cuCtxSynchronize", driver.cuCtxSynchronize())
    handle = checked("cuIpcGetMemHandle", driver.cuIpcGetMemHandle(own))
    store.set(f"inbox/{shard.rank}", bytes(handle.reserved).hex())
    try:
        addresses = [int(own) if rank == shard.rank else _open(driver, store, rank) for rank in range(shard.world)]
    except CudaError:
        return None
    inboxes = torch.tensor(addresses, dtype=torch.int64, device=device)
    return Exchange(
        inboxes=inboxes,
        epochs=torch.zeros(capacity // REGION, dtype=torch.int32, device=device),
        step_inboxes=inboxes + step_at,
        step_epoch=torch.zeros(1, dtype=torch.int32, device=device),
        rank=shard.rank,
        world=shard.world,
        capacity=capacity,
    )


def _open(driver: Any, store: Store, rank: int) -> int:
    handle = driver.CUipcMemHandle()
    handle.reserved = bytes.fromhex(store.get(f"inbox/{rank}").decode())
    flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    return int(checked("cuIpcOpenMemHandle", driver.cuIpcOpenMemHandle(handle, flags)))


def reaches_all(world: int) -> bool:
    """Whether every rank's card can write into every other's memory; rank n is on card n."""
    pairs = [(rank, other) for rank in range(world) for other in range(world) if rank != other]
    return all(torch.cuda.can_device_access_peer(rank, other) for rank, other in pairs)
