"""How ranks meet: over a store on this host that rank 0 names, then in a group that adds up and agrees."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from twinpath.engine.cuda.rank_messages import Hello, RankChannel, RankClosed
from twinpath.engine.cuda.ranks import form_group, join_leader
from twinpath.engine.cuda.shards import Shard

CPU = torch.device("cpu")


def meet(shard: Shard, store: TCPStore) -> tuple[int, Tensor, Tensor]:
    """The smaller of 5 and 6; a sum; parts of 16 and 8 columns side by side."""
    ranks = form_group(store, shard, CPU, fixed_order=True, shares_card=False)
    x, out = torch.full((2, 3), shard.rank + 1.0), torch.zeros(2, 24)
    ranks.collective.add_up(x)
    ranks.collective.join(torch.full((2, 16 - 8 * shard.rank), float(shard.rank)), out)
    return ranks.least("pages", 6 - shard.rank), x, out


def test_two_ranks_meet() -> None:
    ours, theirs = (RankChannel(end) for end in socket.socketpair())
    store = TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    ours.send(Hello(1, 2, store.port))
    with ThreadPoolExecutor(2) as threads:
        follower = threads.submit(lambda: meet(*join_leader(theirs)))
        leader = threads.submit(meet, Shard(0, 2), store)
        results = [leader.result(60.0), follower.result(60.0)]
    for least, x, out in results:
        assert least == 5
        assert torch.equal(x, torch.full((2, 3), 3.0))
        assert torch.equal(out, torch.cat((torch.zeros(2, 16), torch.ones(2, 8)), dim=1))
    ours.close()
    theirs.close()


def test_nobody_says_hello() -> None:
    ours, theirs = (RankChannel(end) for end in socket.socketpair())
    ours.close()
    with pytest.raises(RankClosed):
        join_leader(theirs)
    theirs.close()
