"""Another rank of a model with random weights, as a process of its own: `python -m engine.rank_process FD CARD`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from engine.random_models import SPECS, random_weights
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.follower import follow
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.rank_messages import Loaded, RankChannel, RankClosed
from twinpath.engine.cuda.ranks import RankGroup, form_group, join_leader
from twinpath.engine.cuda.weights import pack_weights

_SMALL = {"hidden_size": 512, "intermediate_size": 1024, "num_kv_heads": 2, "head_dim": 64, "max_position": 512}
#: Half of the first fits the persistent step; the others run the chain: one has biases; the other norms of heads and of
#: what attention and MLP give, windows, and a head that is the embedding and does not come out even.
MODELS = {
    name: replace(SPECS[name], attn_scale=0.125, vocab_size=vocab_size, num_heads=heads, **_SMALL)  # type: ignore[arg-type]
    for name, vocab_size, heads in (("llama", 1024, 16), ("qwen2", 1000, 8), ("gemma3", 1000, 8))
}


def command(model: str, *, shares_card: bool) -> Callable[[int], list[str]]:
    """For `Followers`."""
    return lambda fd: [sys.executable, "-m", "engine.rank_process", str(fd), model, str(int(shares_card))]


def build(model: str, device: torch.device, ranks: RankGroup) -> CudaEngine:
    spec = MODELS[model]
    packed = pack_weights(spec, random_weights(spec), device, torch.bfloat16, spec.max_position, shard=ranks.shard)
    options = CudaOptions(num_pages=128, max_slots=8, max_step_tokens=64, depth=2, shared_persistent=model == "llama")
    return CudaEngine(packed, options, ranks=ranks)


def main() -> None:
    fd, model, shares_card = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
    channel = RankChannel(socket.socket(fileno=fd))
    try:
        shard, store = join_leader(channel)
        device = torch.device("cuda", 0 if shares_card else shard.rank)
        torch.cuda.set_device(device)
        ranks = form_group(store, shard, device, fixed_order=False, shares_card=shares_card)
        engine = build(model, device, ranks)
        channel.send(Loaded())
        follow(channel, engine.launcher)
    except RankClosed:
        return


if __name__ == "__main__":
    main()
