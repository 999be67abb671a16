"""The input kernels' plain twins."""

from __future__ import annotations

import torch
from torch import Tensor

from twinpath.kernels.prefill_rows.spec import Rows


def fetch_inputs(ring: Tensor, turn: Tensor, fetched: Tensor, block: Tensor, words: Tensor) -> None:
    source = ring[int(turn) % len(ring)]
    num_rows, num_pairs = source[:2].tolist()
    block[:num_rows] = source[2 : 2 + num_rows]
    pairs = source[2 + num_rows : 2 + num_rows + 2 * num_pairs].view(-1, 2).to(words.device)
    words[pairs[:, 0].long()] = pairs[:, 1]
    turn.add_(1)
    fetched.copy_(turn)


def feed_decode(
    rows: Rows, num_rows: int, tokens: Tensor, positions: Tensor, block_tables: Tensor, page_size: int
) -> None:
    slots, at = rows.slots.clamp(min=0).long(), rows.positions.clamp(min=0).long()
    known = torch.where(rows.tokens < 0, rows.history[slots, at], rows.tokens)
    tokens[:num_rows] = torch.where(rows.slots >= 0, known, 0)[:num_rows]
    positions[:num_rows] = torch.where(rows.slots >= 0, rows.positions, -1)[:num_rows]
    for row in range(num_rows):
        pages = int(positions[row]) // page_size + 1 if int(positions[row]) >= 0 else 0
        block_tables[row, :pages] = rows.tables[slots[row], :pages]
