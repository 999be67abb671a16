"""The decode step's kernels against their plain twins: real summed axes of six models, few outputs, odd batches."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from twinpath.kernels.begin_step import reference as begin_reference
from twinpath.kernels.begin_step.kernel import begin_step
from twinpath.kernels.decode_attention import reference as attention_reference
from twinpath.kernels.decode_attention.kernel import AttentionShape, decode_attention, split_buffers
from twinpath.kernels.decode_attention.spec import HEADS, TOLERANCE
from twinpath.kernels.gated_linear import reference as gated_reference
from twinpath.kernels.gated_linear.kernel import gated_linear
from twinpath.kernels.linear import reference as linear_reference
from twinpath.kernels.linear.kernel import linear
from twinpath.kernels.linear.spec import RESULT_TOLERANCE, SUM_TOLERANCE, WIDTHS
from twinpath.kernels.linear_residual import reference as residual_reference
from twinpath.kernels.linear_residual.kernel import linear_residual
from twinpath.kernels.lm_head import reference as head_reference
from twinpath.kernels.lm_head.kernel import argmax, lm_head, num_tiles
from twinpath.kernels.residual_norm import reference as norm_reference
from twinpath.kernels.residual_norm.kernel import residual_norm
from twinpath.kernels.tiling import Tiling, fit_tiling, padded_batch

TILING = Tiling()
EPS = 1e-5
#: Rows that the buffers hold.
B_MAX = 16
NAN = float("nan")


@pytest.fixture
def dtype(device: torch.device) -> torch.dtype:
    """The interpreter has no bfloat16 arithmetic."""
    return torch.bfloat16 if device.type == "cuda" else torch.float16


def draw(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return (torch.randn(shape, generator=generator) * scale).to(device, dtype)


def empty(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Whoever leaves an output unwritten leaves NaN."""
    return torch.full(shape, NAN, device=device, dtype=dtype)


def squares_of(num_parts: int, device: torch.device) -> Tensor:
    return draw(num_parts, B_MAX, device=device).square() * 50


def error(got: Tensor, right: Tensor) -> float:
    return float((got.double() - right).norm() / right.norm())


@pytest.mark.parametrize("model", WIDTHS)
def test_linear(model: str, device: torch.device, dtype: torch.dtype) -> None:
    width, batch = WIDTHS[model][0], 3
    x, w = draw(batch, width, device=device, dtype=dtype), draw(32, width, device=device, dtype=dtype)
    bias, squares = draw(32, device=device), squares_of(width // 16, device)
    y = empty(batch, 32, device=device)
    linear(x, w, bias, squares, EPS, y, tiling=TILING)
    assert error(y, linear_reference.linear(x, w, bias, squares, EPS)) < SUM_TOLERANCE
    linear(x, w, None, None, EPS, y, tiling=TILING)
    assert error(y, linear_reference.linear(x, w, None, None, EPS)) < SUM_TOLERANCE


@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize("axis", [1, 2], ids=["o", "down"])
def test_linear_residual(model: str, axis: int, device: torch.device, dtype: torch.dtype) -> None:
    width, batch = WIDTHS[model][axis], 2
    x, w = draw(batch, width, device=device, dtype=dtype), draw(32, width, device=device, dtype=dtype, scale=0.02)
    bias, gain, residual = (draw(n, device=device) for n in (32, 33, batch * 32))
    gain, residual = gain[:32].contiguous(), residual.view(batch, 32)
    right = residual_reference.linear_residual(x, w, bias, gain, residual)
    scaled, squares = empty(batch, 32, device=device, dtype=dtype), empty(2, B_MAX, device=device)
    linear_residual(x, w, bias, gain, residual, scaled, squares, tiling=TILING)
    assert error(residual, right[0]) < SUM_TOLERANCE
    assert error(scaled, right[1]) < RESULT_TOLERANCE[dtype]
    assert error(squares[:, :batch].sum(0), right[2]) < SUM_TOLERANCE


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("model", WIDTHS)
def test_gated_linear(
    model: str, activation: Literal["silu", "gelu_tanh"], device: torch.device, dtype: torch.dtype
) -> None:
    width, batch = WIDTHS[model][0], 5
    x = draw(batch, width, device=device, dtype=dtype)
    w = draw(64, width, device=device, dtype=dtype, scale=width**-0.5)
    squares, y = squares_of(width // 16, device), empty(batch, 32, device=device, dtype=dtype)
    gated_linear(x, w, squares, EPS, activation, y, tiling=TILING)
    assert error(y, gated_reference.gated_linear(x, w, squares, EPS, activation)) < RESULT_TOLERANCE[dtype]


def test_lm_head_with_a_vocabulary_that_does_not_fill_its_tiles(device: torch.device, dtype: torch.dtype) -> None:
    batch, vocab, width = 3, 71, 576
    x, w = draw(batch, width, device=device, dtype=dtype), draw(vocab, width, device=device, dtype=dtype)
    w[40] = w[7]  # Two equal logits wherever they are best.
    x[1] = w[7] * 4
    squares, logits = squares_of(36, device), empty(batch, vocab, device=device)
    tiles = num_tiles(vocab, TILING)
    best, best_id = empty(batch, tiles, device=device), torch.full((batch, tiles), -1, device=device).int()
    lm_head(x, w, squares, EPS, logits, best, best_id, tiling=TILING)
    assert error(logits, head_reference.lm_head(x, w, squares, EPS)) < SUM_TOLERANCE
    tokens, positions = torch.zeros(batch, device=device).int(), torch.tensor([4, -1, 0], device=device).int()
    chosen = torch.full((batch,), -1, device=device).int()
    argmax(best, best_id, chosen, (tokens, positions))
    assert chosen.tolist() == head_reference.argmax(logits).tolist()
    assert chosen[1] == 7
    assert (tokens.tolist(), positions.tolist()) == (chosen.tolist(), [5, -1, 1])


def test_residual_norm(device: torch.device, dtype: torch.dtype) -> None:
    batch, width = 3, 1152
    y, residual = draw(batch, width, device=device), draw(batch, width, device=device) * 3
    post_gain, gain = draw(width, device=device), draw(width, device=device) + 1
    right = norm_reference.residual_norm(y, post_gain, EPS, gain, residual)
    scaled, squares = empty(batch, width, device=device, dtype=dtype), empty(72, B_MAX, device=device)
    residual_norm(y, post_gain, EPS, gain, residual, scaled, squares)
    assert error(residual, right[0]) < SUM_TOLERANCE
    assert error(scaled, right[1]) < RESULT_TOLERANCE[dtype]
    assert error(squares[:, :batch].sum(0), right[2]) < SUM_TOLERANCE


def test_begin_step_embeds_and_cuts_every_row(device: torch.device, dtype: torch.dtype) -> None:
    width, splits, windows, lengths = 576, 4, [100, 1 << 30], [1, 64, 65, 1000, 0]
    embed, gain = draw(50, width, device=device, dtype=dtype), draw(width, device=device)
    tokens = torch.tensor(
        [3, 49, 0, 2147483647, -5], device=device
    ).int()  # The last two are no tokens: no NaN, no fault.
    positions = torch.tensor(lengths, device=device).int() - 1
    residual, scaled = empty(5, width, device=device), empty(5, width, device=device, dtype=dtype)
    squares, borders = empty(36, B_MAX, device=device), torch.full((2, B_MAX, splits + 1), -1, device=device).int()
    begin_step(
        tokens,
        positions,
        embed,
        2.5,
        gain,
        torch.tensor(windows, device=device).int(),
        residual,
        scaled,
        squares,
        borders,
        grain=16,
        least=32,
    )
    right = begin_reference.embedding(tokens, embed, 2.5)
    assert error(residual, right) < SUM_TOLERANCE
    assert error(scaled, right * gain.double()) < RESULT_TOLERANCE[dtype]
    assert error(squares[:, :5].sum(0), right.square().sum(1)) < SUM_TOLERANCE
    for index, window in enumerate(windows):
        cut = [begin_reference.borders(length, window, splits, 16, 32) for length in lengths]
        assert borders[index, :5].tolist() == cut
    assert begin_reference.borders(1000, 1 << 30, splits, 16, 32) == [0, 256, 512, 768, 1000]


def test_begin_step_cuts_even_parts(device: torch.device, dtype: torch.dtype) -> None:
    """As many parts as have the least number of tokens; where fewer are used than fit, the others are empty."""
    width, lengths, window = 64, [1, 199, 200, 350, 5000], 1 << 30
    embed, gain = draw(4, width, device=device, dtype=dtype), draw(width, device=device)
    positions = torch.tensor(lengths, device=device).int() - 1
    residual, scaled = empty(5, width, device=device), empty(5, width, device=device, dtype=dtype)
    squares, borders = empty(4, B_MAX, device=device), torch.full((1, B_MAX, 7), -1, device=device).int()
    windows, tokens = torch.tensor([window], device=device).int(), torch.zeros(5, device=device).int()
    begin_step(
        tokens, positions, embed, 1.0, gain, windows, residual, scaled, squares, borders,
        grain=16, least=100, even_parts=3,
    )  # fmt: skip
    cut = [begin_reference.even_borders(length, window, 6, 3, 16, 100) for length in lengths]
    assert borders[0, :5].tolist() == cut
    assert cut[1:4] == [
        [0, 199, 199, 199, 199, 199, 199],
        [0, 112, 200, 200, 200, 200, 200],
        [0, 128, 256, 350, 350, 350, 350],
    ]


class Scene:
    """Rows of different lengths over shuffled pages; where nobody may look, keys and values are NaN."""

    def __init__(self, model: str, lengths: list[int], device: torch.device, dtype: torch.dtype) -> None:
        self.num_heads, num_kv_heads, self.dim, normed = HEADS[model]
        self.num_heads, num_kv_heads = self.num_heads // num_kv_heads, 1  # One key head: the programs are alike.
        self.lengths, self.device, self.dtype = lengths, device, dtype
        pages = -(-max(lengths) // 16)
        order = torch.randperm(pages * len(lengths), generator=torch.Generator().manual_seed(1))
        self.table = order.view(len(lengths), pages).int().to(device)
        self.cache = tuple(empty(len(order), num_kv_heads, 16, self.dim, device=device, dtype=dtype) for _ in range(2))
        for row, length in enumerate(lengths):
            for position in range(length - 1):
                page = int(self.table[row, position // 16])
                for part in self.cache:
                    part[page, :, position % 16] = torch.randn(num_kv_heads, self.dim).to(device, dtype)
        self.qkv = draw(len(lengths), (self.num_heads + 2 * num_kv_heads) * self.dim, device=device)
        self.rope = draw(max(lengths), self.dim, device=device)
        self.gains = (draw(self.dim, device=device), draw(self.dim, device=device) + 1) if normed else None

    def run(self, rows: list[int], borders: list[list[int]]) -> Tensor:
        """Attention of these rows together, [rows, H D]."""
        shape = AttentionShape(
            num_heads=self.num_heads,
            num_kv_heads=1,
            head_dim=self.dim,
            page_size=16,
            scale=self.dim**-0.5,
            norm_eps=EPS,
            num_splits=len(borders[0]) - 1,
            tile=32,
        )
        positions = torch.tensor([self.lengths[row] - 1 for row in rows], device=self.device).int()
        out = empty(len(rows), self.num_heads * self.dim, device=self.device, dtype=self.dtype)
        buffers = split_buffers(shape, len(rows), self.device)
        k, v = self.cache
        decode_attention(
            self.qkv[rows],
            self.gains,
            self.rope,
            (k, v),
            self.table[rows],
            positions,
            torch.tensor(borders, device=self.device).int(),
            out,
            shape=shape,
            buffers=buffers,
        )
        assert not buffers.arrivals.any()
        return out

    def right(self, row: int, first: int) -> Tensor:
        k, v = (part.clone() for part in self.cache)
        return attention_reference.decode_attention(
            self.qkv[row],
            self.gains,
            self.rope,
            (k, v),
            self.table[row],
            self.lengths[row] - 1,
            first,
            num_heads=self.num_heads,
            scale=self.dim**-0.5,
            eps=EPS,
        ).flatten()


@pytest.mark.parametrize("model", HEADS)
def test_attention_of_every_model_and_any_borders(model: str, device: torch.device, dtype: torch.dtype) -> None:
    scene = Scene(model, [1, 40, 70], device, dtype)
    # Parts of a page, empty parts, a window (the last row starts at 33).
    borders = [[0, 0, 1, 1], [0, 16, 17, 40], [33, 64, 64, 70]]
    out = scene.run([0, 1, 2], borders)
    for row, cut in enumerate(borders):
        assert error(out[row], scene.right(row, cut[0])) < TOLERANCE[dtype], row


def test_attention_of_a_row_does_not_depend_on_its_neighbours(device: torch.device, dtype: torch.dtype) -> None:
    scene = Scene("llama-3.2-1b", [64, 33], device, dtype)
    borders = [[0, 32, 64], [0, 32, 33]]
    together = scene.run([0, 1], borders)
    assert torch.equal(scene.run([1], borders[1:])[0], together[1])


def test_projection_of_a_row_is_the_same_alone_and_beside_seven(device: torch.device, dtype: torch.dtype) -> None:
    x, w = draw(8, 1024, device=device, dtype=dtype), draw(32, 1024, device=device, dtype=dtype)
    together, alone = empty(8, 32, device=device), empty(1, 32, device=device)
    linear(x, w, None, None, EPS, together, tiling=TILING)
    for row in range(8):
        linear(x[row : row + 1], w, None, None, EPS, alone, tiling=TILING)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("width", [16, 48, 576, 640, 3584, 14_336, 18_944])
def test_tilings_divide_the_summed_axis(width: int) -> None:
    tiling = fit_tiling(Tiling(slices=8, block_k=256), width)
    assert width % (tiling.slices * tiling.block_k) == 0


def test_a_summed_axis_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        fit_tiling(Tiling(), 100)


def test_batches_of_up_to_eight_share_one_kernel() -> None:
    assert [padded_batch(n) for n in (1, 2, 8, 9, 33, 64)] == [8, 8, 8, 16, 64, 64]
