"""What stops a model from being shared, before any process is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.random_models import SPECS
from twinpath.config import EngineConfig
from twinpath.engine.cuda import rank_load
from twinpath.engine.cuda.ranks import OnLoss
from twinpath.errors import UserError


def command(fd: int) -> list[str]:
    raise AssertionError("nothing should be started")


def open_ranks(world: int, on_loss: OnLoss = lambda *_: None) -> None:
    config = EngineConfig(Path("model"), device="cuda", tensor_parallel_size=world)
    rank_load.open_ranks(config, 8, lambda window: window, lambda *_: None, command, on_loss)


def test_fewer_cards_than_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="tensor_parallel_size 2 needs 2 GPUs, torch sees 1"):
        open_ranks(2)


def test_heads_that_do_not_come_out_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(rank_load, "files_at", lambda path: path)
    monkeypatch.setattr(rank_load, "read_spec", lambda files: SPECS["llama"])
    with pytest.raises(UserError, match="tensor_parallel_size 4 does not fit this model: 6 attention heads"):
        open_ranks(4)
