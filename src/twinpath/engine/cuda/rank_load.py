"""From the settings of an engine process to a model that several GPUs share: rank 0's side, and the other ranks'."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from contextlib import suppress

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from twinpath.config import EngineConfig
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.follower import follow
from twinpath.engine.cuda.load import open_cuda
from twinpath.engine.cuda.rank_messages import Failed, Loaded, RankChannel, RankClosed
from twinpath.engine.cuda.ranks import Command, Followers, OnLoss, RankGroup, form_group, join_leader
from twinpath.engine.cuda.shards import Shard, check_divisible
from twinpath.errors import UserError
from twinpath.model.files import files_at
from twinpath.model.tensors import Report
from twinpath.model.weights import read_spec


def open_ranks(
    config: EngineConfig,
    max_slots: int,
    step_tokens: Callable[[int], int],
    report: Report,
    command: Command,
    on_loss: OnLoss,
) -> CudaEngine:
    """As `open_cuda`, over `config.tensor_parallel_size` GPUs; rank n is on card n. `on_loss`: see `Followers`.

    Raises:
        UserError: also for too few cards, and for a model that does not come out even.
    """
    world = config.tensor_parallel_size
    num_cards = torch.cuda.device_count()
    if num_cards < world:
        raise UserError(f"tensor_parallel_size {world} needs {world} GPUs, torch sees {num_cards}")
    check_divisible(read_spec(files_at(config.model_path)), world)
    followers = Followers(world, command, on_loss)
    ranks = _form(config, followers.shard, followers.store)
    engine = open_cuda(config, max_slots, step_tokens, report, ranks)
    followers.wait_loaded()
    engine.lead(followers)
    how = "the library" if ranks.collective.exchange is None else "peer memory"
    engine.facts["tensor parallel"] = f"{world} GPUs, small sums through {how}"
    return engine


def run_rank(channel: RankChannel, config: EngineConfig, max_slots: int, step_tokens: Callable[[int], int]) -> None:
    """Be the rank that rank 0 says, until it is gone. A failure is told to it."""
    failure: Failed
    try:
        shard, store = join_leader(channel)
        torch.cuda.set_device(shard.rank)
        engine = open_cuda(config, max_slots, step_tokens, lambda *_: None, _form(config, shard, store))
        gc.collect()
        gc.freeze()
        gc.disable()  # `follow` collects when it rests.
        channel.send(Loaded())
        follow(channel, engine.launcher, config.spin_s or 0.0)
    except RankClosed:
        return
    except UserError as error:
        failure = Failed(str(error), is_user_error=True)
    except Exception as error:
        traceback.print_exc()
        failure = Failed(f"{type(error).__name__}: {error}", is_user_error=False)
    with suppress(RankClosed):
        channel.send(failure)


def _form(config: EngineConfig, shard: Shard, store: TCPStore) -> RankGroup:
    device = torch.device("cuda", shard.rank)
    return form_group(store, shard, device, fixed_order=config.batch_invariant, shares_card=False)
