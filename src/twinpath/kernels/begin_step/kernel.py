"""Embedding rows with what the first norm needs of them, and where each row's context is split, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from twinpath.kernels.tile import await_previous_kernel


@triton.jit
def _begin_step(
    tokens_ptr, positions_ptr, embed_ptr, gain_ptr, windows_ptr, residual_ptr, scaled_ptr, squares_ptr, borders_ptr,
    num_parts, embed_scale, vocab_size,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, B_MAX: tl.constexpr, PARTS: tl.constexpr, WINDOWS: tl.constexpr,
    SPLITS: tl.constexpr, USED: tl.constexpr, EVEN: tl.constexpr, BORDERS: tl.constexpr,
    GRAIN: tl.constexpr, LEAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gain = tl.load(gain_ptr + columns, mask=inside, other=0.0)
    await_previous_kernel(PDL)
    # A step whose logits were not numbers leaves no token; its row must not read past the table.
    token = tl.minimum(tl.maximum(tl.load(tokens_ptr + row), 0), vocab_size - 1).to(tl.int64)
    length = tl.load(positions_ptr + row) + 1
    residual = tl.load(embed_ptr + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32) * embed_scale
    cells = row.to(tl.int64) * WIDTH + columns
    tl.store(residual_ptr + cells, residual, mask=inside)
    tl.store(scaled_ptr + cells, (residual * gain).to(scaled_ptr.dtype.element_ty), mask=inside)
    part = tl.arange(0, PARTS)
    squares = tl.where(part == 0, tl.sum(residual * residual, axis=0), 0.0)
    tl.store(squares_ptr + part * B_MAX + row, squares, mask=part < num_parts)
    index = tl.arange(0, BORDERS)
    for w in tl.static_range(WINDOWS):
        window = tl.load(windows_ptr + w)
        first = tl.maximum(length - window, 0)
        if EVEN:
            parts = tl.minimum(tl.maximum((length - first) // LEAST, 1), USED)
            split = (length - first + parts * GRAIN - 1) // (parts * GRAIN) * GRAIN
        else:
            split = tl.maximum((length - first + USED * GRAIN - 1) // (USED * GRAIN) * GRAIN, LEAST)
        border = tl.minimum(first + index * split, length)
        border = tl.where(index >= USED, length, border)
        tl.store(borders_ptr + (w * B_MAX + row) * (SPLITS + 1) + index, border, mask=index <= SPLITS)


def begin_step(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    embed: torch.Tensor,
    embed_scale: float,
    gain: torch.Tensor,
    windows: torch.Tensor,
    residual: torch.Tensor,
    scaled: torch.Tensor,
    squares: torch.Tensor,
    borders: torch.Tensor,
    *,
    grain: int,
    least: int = 0,
    even_parts: int | None = None,
    pdl: bool = False,
) -> None:
    """residual = embed[tokens] * scale; scaled and squares as of `linear_residual`; borders of equal splits.

    A split is a multiple of `grain` tokens, as few as reach the end but `least` or more. With `even_parts` splits are
    alike instead: as many as have `least` tokens or more, `even_parts` at most. Either depends on the row's own length
    alone, so its sums have one order in every batch.

    Shapes: tokens, positions int32 [B]; embed [vocab, hidden]; gain float32 [hidden]; windows int32 [W] (a large number
        for none); residual float32 and scaled [B, hidden]; squares float32 [parts, B_max]; borders int32
        [W, B_max, splits + 1].
    """
    num_batch, width = residual.shape
    num_windows, max_batch, num_borders = borders.shape
    _begin_step[(num_batch,)](
        tokens,
        positions,
        embed,
        gain,
        windows,
        residual,
        scaled,
        squares,
        borders,
        squares.shape[0],
        embed_scale,
        embed.shape[0],
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        B_MAX=max_batch,
        PARTS=triton.next_power_of_2(squares.shape[0]),
        WINDOWS=num_windows,
        SPLITS=num_borders - 1,
        USED=num_borders - 1 if even_parts is None else even_parts,
        EVEN=even_parts is not None,
        BORDERS=triton.next_power_of_2(num_borders),
        GRAIN=grain,
        LEAST=least,
        PDL=pdl,
        num_warps=8,
        launch_pdl=pdl,
    )
