"""The ranks of a model that several GPUs share: how they meet, and rank 0's hold on the other ranks' processes."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread
from time import monotonic
from typing import cast

import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from twinpath.engine.cuda.collectives import Collective, LibraryCollective, ProcessGroup
from twinpath.engine.cuda.rank_messages import Failed, Hello, Loaded, Ping, RankChannel, RankClosed
from twinpath.engine.cuda.shards import Shard
from twinpath.errors import EngineError

#: Ranks meet on this host only.
_HOST = "127.0.0.1"
#: A rank that says nothing for so long in a collective of the library has lost the others.
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
#: Rank 0 listens before it says Hello.
_CONNECT_TIMEOUT = timedelta(seconds=10)
_LOOK_S = 0.25
#: A rank that leaves a question unanswered for so long hangs. The gateway gives up on the whole engine at 3.5 s.
_SILENT_S = 2.5
_STOP_TIMEOUT_S = 5.0

#: Told once, from a thread of its own: why the group has ended, and whether a setting is to blame.
OnLoss = Callable[[str, bool], None]
#: Descriptor of its socket -> command that starts a rank, which says Hello back with `join_leader`.
Command = Callable[[int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class RankGroup:
    """One rank's side of the group."""

    collective: Collective
    store: TCPStore

    @property
    def shard(self) -> Shard:
        return self.collective.shard

    def least(self, name: str, value: int) -> int:
        """The smallest of all ranks' values; waits for them."""
        return _least(self.store, self.shard, name, value)


def form_group(
    store: TCPStore, shard: Shard, device: torch.device, *, fixed_order: bool, shares_card: bool
) -> RankGroup:
    """Meet the other ranks: they call this too.

    fixed_order: sums do not depend on a message's size. shares_card: all ranks are on one card, for tests.
    """
    timeout = _COLLECTIVE_TIMEOUT
    if device.type == "cpu":
        from torch.distributed import ProcessGroupGloo

        gloo = ProcessGroupGloo(PrefixStore("gloo", store), shard.rank, shard.world, timeout)
        return RankGroup(LibraryCollective(cast(ProcessGroup, gloo), shard, fixed_order=True), store)
    from twinpath.engine.cuda.collectives import PeerCollective
    from twinpath.engine.cuda.peers import open_exchange, reaches_all

    large = None
    if not shares_card:
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = ProcessGroupNCCL(PrefixStore("nccl", store), shard.rank, shard.world, options)
        large = LibraryCollective(cast(ProcessGroup, nccl), shard, fixed_order=fixed_order)
    exchange = open_exchange(store, shard, device) if shares_card or reaches_all(shard.world) else None
    if large is not None and not _least(store, shard, "peers", int(exchange is not None)):
        return RankGroup(large, store)
    if exchange is None:
        raise EngineError("ranks on one card cannot open each other's memory")
    return RankGroup(PeerCollective(exchange, large), store)


def _least(store: TCPStore, shard: Shard, name: str, value: int) -> int:
    store.set(f"{name}/{shard.rank}", str(value))
    return min(int(store.get(f"{name}/{rank}")) for rank in range(shard.world))


def join_leader(channel: RankChannel) -> tuple[Shard, TCPStore]:
    """A rank that follows learns who it is and where ranks meet.

    Raises: RankClosed when rank 0 is gone.
    """
    hello = channel.receive()
    assert isinstance(hello, Hello)
    store = TCPStore(_HOST, hello.store_port, hello.world, False, timeout=_CONNECT_TIMEOUT)
    store.set_timeout(_COLLECTIVE_TIMEOUT)  # Others may load for long.
    return Shard(hello.rank, hello.world), store


class Followers:
    """Rank 0's other ranks: started, watched, and gone when this is closed or this process ends.

    To be made in the main thread: Linux ends them with the thread that started them.
    """

    def __init__(self, world: int, command: Command, on_loss: OnLoss, silent_s: float = _SILENT_S) -> None:
        """silent_s: how long a rank may leave a question unanswered."""
        self.shard = Shard(0, world)
        self.store = TCPStore(_HOST, 0, world, True, timeout=_COLLECTIVE_TIMEOUT, wait_for_workers=False)
        self.channels: list[RankChannel] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._on_loss, self._silent_s, self._all_loaded = on_loss, silent_s, Event()
        self._is_closing = self._is_lost = False
        for rank in range(1, world):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            with theirs:
                self._processes.append(
                    subprocess.Popen(command(theirs.fileno()), stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
                )
            self.channels.append(RankChannel(ours))
            self.channels[-1].send(Hello(rank, world, self.store.port))
        self._watch = Thread(target=self._run, name="ranks", daemon=True)
        self._watch.start()

    def wait_loaded(self) -> None:
        """Until every rank follows. A rank that fails before that is told to `on_loss`, not here."""
        self._all_loaded.wait()

    def close(self) -> None:
        """End the other ranks. Idempotent."""
        self._is_closing = True
        for channel in self.channels:
            channel.close()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.0 if self._is_lost else _STOP_TIMEOUT_S)
            process.kill()
            process.wait()

    def _run(self) -> None:
        loss = None
        watches = [
            _Watch(channel, f"rank {i} of {self.shard.world}", self._silent_s)
            for i, channel in enumerate(self.channels, 1)
        ]
        while loss is None and not self._is_closing:
            with suppress(OSError, ValueError):  # Closed meanwhile.
                select.select(self.channels, [], [], _LOOK_S)
            loss = next((found for w, p in zip(watches, self._processes, strict=True) if (found := w.look(p))), None)
            if all(watch.is_loaded for watch in watches):
                self._all_loaded.set()
        if loss is not None and not self._is_closing:
            self._is_lost = True
            self._on_loss(*loss)


class _Watch:
    """What rank 0 knows of one other rank."""

    def __init__(self, channel: RankChannel, name: str, silent_s: float) -> None:
        self._channel, self._name, self._silent_s = channel, name, silent_s
        self.is_loaded = False
        self._num_asked = self._num_answered = 0
        self._asked_s = 0.0

    def look(self, process: subprocess.Popen[bytes]) -> tuple[str, bool] | None:
        """Hear what it said and ask it something; why it is lost, when it is."""
        try:
            while (message := self._channel.take()) is not None:
                match message:
                    case Failed(reason, is_user_error):
                        return f"{self._name}: {reason}", is_user_error
                    case Loaded():
                        self.is_loaded = True
                    case Ping(number):
                        self._num_answered = number
            return self._ask()
        except RankClosed:
            return f"{self._name} ended ({_ending(process)})", False

    def _ask(self) -> tuple[str, bool] | None:
        now_s = monotonic()
        if self._num_answered == self._num_asked:
            if self.is_loaded and now_s - self._asked_s > _LOOK_S:
                self._num_asked += 1
                self._asked_s = now_s
                self._channel.send(Ping(self._num_asked))
            return None
        silent_s = now_s - self._asked_s
        return (f"{self._name} has not answered for {silent_s:.1f} s", False) if silent_s > self._silent_s else None


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "its socket closed"
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
