"""Paged attention on a Hopper card: right values, no look at what is not written, the same bits whatever the cut."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor

from twinpath.kernels.paged_attention.spec import LANES, MAX_PARTS, num_part_slots, part_bytes
from twinpath.kernels.prefill_rows.spec import HeadShape

SHAPE = HeadShape(num_heads=8, num_kv_heads=2, head_dim=128, page_size=16, norm_eps=1e-6)
SCALE = 128**-0.5
NUM_PAGES = 2400


def test_kept_parts_are_those_of_full_tiles() -> None:
    assert num_part_slots(SHAPE, 512) == 512 // 32 * MAX_PARTS
    assert num_part_slots(SHAPE, 0) == 1
    lanes = num_part_slots(SHAPE, 512) * 2 * LANES + 80 * MAX_PARTS * 8
    assert part_bytes(SHAPE, 512, 80) == lanes * (128 + 2) * 4


def on_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0) and bool(find_spec("triton"))


class Scene:
    """Runs of rows (start, length), each of a request of its own, over pages in random order."""

    def __init__(self, runs: list[tuple[int, int]]) -> None:
        from twinpath.kernels.paged_attention.kernel import PagedAttention

        rng = np.random.default_rng(0)
        torch.manual_seed(0)
        device = torch.device("cuda")
        self.runs = runs
        kv = torch.randn(2, 1, NUM_PAGES, 2, 16, 128, device=device).bfloat16()
        self.k, self.v = kv[0, 0], kv[1, 0]
        order, used = rng.permutation(NUM_PAGES), 0
        self.tables = torch.zeros(len(runs), 1200, dtype=torch.int32, device=device)
        for slot, (start, length) in enumerate(runs):
            num = -(-(start + length) // 16)
            self.tables[slot, :num] = torch.from_numpy(order[used : used + num].astype(np.int32))
            if tail := (start + length) % 16:
                kv[:, 0, int(order[used + num - 1]), :, tail:] = float("nan")
            used += num
        self.q = torch.randn(sum(length for _, length in runs), 8 * 128, device=device).bfloat16()
        self.kernel = PagedAttention(SHAPE, SCALE, [(self.k, self.v)], 512, 96)

    def attend(self, runs: list[tuple[int, int]], slots: list[int], q: Tensor, *, splits: bool = True) -> Tensor:
        rows, row = [], 0
        for (start, length), slot in zip(runs, slots, strict=True):
            rows += [(row + i, min(32, length - i), start + i, slot) for i in range(0, length, 32)]
            row += length
        padding = [(-1, 0, -1, -1)] * 3
        out = torch.full_like(q, float("nan"))
        self.kernel.plan(torch.tensor(rows + padding, dtype=torch.int32, device=q.device), splits=splits)
        self.kernel.attend(0, q, self.tables, out)
        return out

    def right(self) -> Tensor:
        outs, row = [], 0
        for slot, (start, length) in enumerate(self.runs):
            end = start + length
            table = self.tables[slot, : -(-end // 16)].long()
            k, v = (part[table].transpose(0, 1).reshape(2, -1, 128)[:, :end].double() for part in (self.k, self.v))
            q = self.q[row : row + length].double().view(length, 2, 4, 128)
            scores = torch.einsum("rkgd,knd->kgrn", q, k) * SCALE
            position = start + torch.arange(length, device=q.device)
            hidden = torch.arange(end, device=q.device) > position[:, None]
            shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            outs.append(torch.einsum("kgrn,knd->rkgd", shares, v).reshape(length, -1))
            row += length
        return torch.cat(outs)


@pytest.mark.gpu
@pytest.mark.skipif(not on_hopper(), reason="needs a Hopper card")
@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize(
    "runs",
    [
        [(0, 128)],
        [(5, 33)],
        [(700, 1), (0, 17), (5000, 70), (3, 1), (9000, 33), (1, 1)],
        [(16_300, 120), *[(1023, 1)] * 8],
        [(18_000, 1)],
    ],
    ids=["short", "one row left", "mixed", "beside streams", "long stream"],
)
def test_values(runs: list[tuple[int, int]], splits: bool) -> None:
    scene = Scene(runs)
    out, right = scene.attend(runs, list(range(len(runs))), scene.q, splits=splits), scene.right()
    errors = (out.double() - right).norm(dim=1) / right.norm(dim=1)
    assert errors.max() < 1e-2, errors


@pytest.mark.gpu
@pytest.mark.skipif(not on_hopper(), reason="needs a Hopper card")
@pytest.mark.parametrize("first", [100, 64, 31])
def test_bits_do_not_depend_on_cuts_or_company(first: int) -> None:
    runs = [(8000, 128), (1500, 1)]
    scene = Scene(runs)
    whole = scene.attend(runs, [0, 1], scene.q)
    cut = [
        scene.attend([(8000, first)], [0], scene.q[:first]),
        scene.attend([(8000 + first, 128 - first)], [0], scene.q[first:128]),
        scene.attend([(1500, 1)], [1], scene.q[128:]),
    ]
    assert torch.equal(whole, torch.cat(cut))
