"""The row kernels against their plain twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from twinpath.kernels.prefill_rows import launch, reference
from twinpath.kernels.prefill_rows.spec import HeadShape, Rows

HIDDEN, NUM_ROWS = 96, 5
EPS = 1e-5


def ints(device: torch.device, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def noise(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.fixture
def rows(device: torch.device) -> Rows:
    """Row 3 is padding; slot 1's pages come in another order."""
    tables = torch.tensor([[7, 7, 7], [2, 0, 5]], dtype=torch.int32, device=device)
    return Rows(
        ints(device, 4, -1, 11, -1, 3), ints(device, 17, 40, 16, -1, 0), ints(device, 1, 1, 1, -1, 0),
        ints(device), tables, torch.arange(2 * 50, dtype=torch.int32, device=device).view(2, 50) % 12,
    )  # fmt: skip


def test_embedding_scales_and_leaves_padding_zero(rows: Rows, device: torch.device) -> None:
    embed = noise(device, 12, HIDDEN).bfloat16()
    got, right = (torch.full((NUM_ROWS, HIDDEN), float("nan"), device=device) for _ in range(2))
    launch.embed_rows(rows, embed, 3.0, got)
    reference.embed_rows(rows, embed, 3.0, right)
    assert torch.equal(got, right)
    assert not got[3].any()
    assert torch.equal(got[0], embed[4].float() * 3.0)
    assert torch.equal(got[1], embed[(50 + 40) % 12].float() * 3.0)  # the token said before


@pytest.mark.parametrize("parts", ["norm", "add", "bias", "post", "last", "sums"])
def test_adding_and_norming(parts: str, device: torch.device) -> None:
    results = []
    for run in (launch.add_norm, reference.add_norm):
        residual = noise(device, NUM_ROWS, HIDDEN)
        out = torch.zeros(NUM_ROWS, HIDDEN, device=device)
        lead = (3,) if parts == "sums" else ()
        delta = None if parts == "norm" else noise(device, *lead, NUM_ROWS, HIDDEN, seed=1)
        weight = None if parts == "last" else noise(device, HIDDEN, seed=2)
        bias = noise(device, HIDDEN, seed=3) if parts in ("bias", "post") else None
        post = noise(device, HIDDEN, seed=4) if parts == "post" else None
        run(residual, delta, weight, out, EPS, bias=bias, post_weight=post)
        results.append((residual, out))
    for got, right in zip(*results, strict=True):
        torch.testing.assert_close(got, right, atol=1e-6, rtol=1e-5)


def test_norming_picked_rows(device: torch.device) -> None:
    residual, weight = noise(device, NUM_ROWS, HIDDEN), noise(device, HIDDEN, seed=1)
    picked = ints(device, 4, 1, -1)
    got, right = torch.zeros(3, HIDDEN, device=device), torch.zeros(3, HIDDEN, device=device)
    launch.add_norm(residual, None, weight, got, EPS, picked=picked)
    reference.add_norm(residual, None, weight, right, EPS, picked=picked)
    torch.testing.assert_close(got, right, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [16, 24])
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "sums, bias and norms"])
def test_rotation_and_append(rows: Rows, size: int, extras: bool, device: torch.device) -> None:
    shape = HeadShape(num_heads=6, num_kv_heads=2, head_dim=size, page_size=16, norm_eps=EPS)
    lead = (2,) if extras else ()
    qkv, rope = noise(device, *lead, NUM_ROWS, 10 * size), noise(device, 50, size, seed=1)
    bias = noise(device, 10 * size, seed=2) if extras else None
    norms = (noise(device, size, seed=3), noise(device, size, seed=4)) if extras else None
    results = []
    for module in (launch, reference):
        q = torch.zeros(NUM_ROWS, 6 * size, device=device)
        pages = (torch.zeros(8, 2, 16, size, device=device), torch.zeros(8, 2, 16, size, device=device))
        module.rotate_append(qkv, bias, norms, rope, rows, q, pages, shape)
        results.append((q[rows.slots >= 0], *pages))
    for got, right in zip(*results, strict=True):
        torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-5)
    written = {(page, cell) for page, _, cell, _ in results[0][1].nonzero().tolist()}
    assert written == {(0, 1), (5, 8), (0, 0), (7, 0)}


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gating(activation: str, device: torch.device) -> None:
    gate_up = noise(device, NUM_ROWS, 2 * 1100)
    got, right = torch.zeros(NUM_ROWS, 1100, device=device), torch.zeros(NUM_ROWS, 1100, device=device)
    launch.gate(gate_up, activation, got)  # type: ignore[arg-type]
    reference.gate(gate_up, activation, right)  # type: ignore[arg-type]
    torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-5)
