"""The exchange kernels, ranks played in turn over inboxes in one process: first everybody sends, then all receive."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from twinpath.kernels.all_reduce import launch, reference
from twinpath.kernels.all_reduce.spec import REGION, Exchange, inbox_bytes
from twinpath.kernels.linear.spec import RESULT_TOLERANCE, SUM_TOLERANCE

CAPACITY = 8 * REGION
EPS = 1e-5
B_MAX = 4
#: (push, take): nobody waits for somebody whose turn has not come.
PHASES = ((True, False), (False, True))
NAN = float("nan")


def exchanges(world: int, device: torch.device) -> tuple[list[Exchange], list[Tensor]]:
    """Every rank's view, and the inboxes to keep."""
    inboxes = [torch.zeros(inbox_bytes(world, CAPACITY) // 8, dtype=torch.int64, device=device) for _ in range(world)]
    addresses = torch.tensor([inbox.data_ptr() for inbox in inboxes], device=device)
    epochs = [torch.zeros(CAPACITY // REGION, dtype=torch.int32, device=device) for _ in range(world)]
    nothing = torch.zeros(0, device=device)
    return [Exchange(addresses, e, nothing, nothing, rank, world, CAPACITY) for rank, e in enumerate(epochs)], inboxes


def draw(*shape: int, seed: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def error(got: Tensor, right: Tensor) -> float:
    return float((got.double() - right).norm() / right.norm())


@pytest.mark.parametrize(("world", "has_post"), [(1, False), (2, True), (3, False)], ids=["alone", "sandwich", "three"])
def test_reduce_residual(world: int, has_post: bool, device: torch.device) -> None:
    """Three messages through the same slots: one more than there are places for."""
    width, rows = 640, 2
    views, _inboxes = exchanges(world, device)
    bias, post, gain = (draw(width, seed=seed, device=device) for seed in (1, 2, 3))
    num_parts = launch.residual_parts(width, whole_rows=has_post)
    post_gain = post if has_post else None
    residuals = [draw(rows, width, seed=4, device=device) for _ in views]
    for turn in range(3):
        parts = [draw(rows, width, seed=10 * turn + rank, device=device) for rank in range(world)]
        right = reference.reduce_residual(parts, bias, post_gain, gain, residuals[0], EPS)
        scaled = [torch.full((rows, width), NAN, dtype=torch.float16, device=device) for _ in views]
        squares = [torch.full((num_parts, B_MAX), NAN, device=device) for _ in views]

        for push, take in PHASES:
            for r, view in enumerate(views):
                outputs, exchange = (residuals[r], scaled[r], squares[r]), view if world > 1 else None
                launch.reduce_residual(parts[r], bias, post_gain, gain, *outputs, EPS, exchange, push=push, take=take)
        assert error(residuals[0], right[0]) < SUM_TOLERANCE
        assert error(scaled[0], right[1]) < RESULT_TOLERANCE[torch.float16]
        assert error(squares[0][:, :rows].sum(0), right[2]) < SUM_TOLERANCE
        for other in residuals[1:]:
            assert torch.equal(other, residuals[0])


@pytest.mark.parametrize(("world", "dtype"), [(2, torch.float32), (3, torch.float16)], ids=["float32", "float16"])
def test_add_up_has_the_references_bits(world: int, dtype: torch.dtype, device: torch.device) -> None:
    views, _inboxes = exchanges(world, device)
    for turn in range(3):
        values = [draw(3, 700, seed=turn * 7 + rank, device=device, dtype=dtype) for rank in range(world)]
        right = reference.add_up(values)
        for push, take in PHASES:
            for value, view in zip(values, views, strict=True):
                launch.add_up(value, view, push=push, take=take)
        assert all(torch.equal(got, right) for got in values)


def test_join_when_the_last_rank_has_less(device: torch.device) -> None:
    views, _inboxes = exchanges(3, device)
    for turn in range(3):
        whole = draw(2, 40, seed=turn, device=device)
        parts = [whole[:, :16].contiguous(), whole[:, 16:32].contiguous(), whole[:, 32:].contiguous()]
        outs = [torch.full((2, 40), NAN, device=device) for _ in views]
        for push, take in PHASES:
            for part, out, view in zip(parts, outs, views, strict=True):
                launch.join(part, 16, out, view, push=push, take=take)
        assert all(torch.equal(out, whole) for out in outs)


def test_messages_of_different_shapes_share_the_inbox(device: torch.device) -> None:
    """Regions are numbered one by one, so a small message between large ones confuses nobody."""
    views, _inboxes = exchanges(2, device)
    for turn, columns in enumerate((1500, 100, 100, 1500)):
        values = [draw(1, columns, seed=turn * 3 + rank, device=device) for rank in range(2)]
        right = values[0] + values[1]
        for push, take in PHASES:
            for value, view in zip(values, views, strict=True):
                launch.add_up(value, view, push=push, take=take)
        assert torch.equal(values[0], right) and torch.equal(values[1], right)


def test_a_message_beyond_the_inbox_is_refused(device: torch.device) -> None:
    views, _inboxes = exchanges(2, device)
    with pytest.raises(ValueError, match="do not fit the inbox"):
        launch.add_up(torch.zeros(CAPACITY + 1, device=device), views[0])
    with pytest.raises(ValueError, match="do not fit the inbox"):
        launch.join(torch.zeros(9, 16, device=device), 16, torch.zeros(9, 32, device=device), views[0])
