"""The beginning of a step in plain torch."""

from __future__ import annotations

import torch


def embedding(tokens: torch.Tensor, embed: torch.Tensor, scale: float) -> torch.Tensor:
    """Residual float64 [B, hidden]."""
    return embed[tokens.clamp(0, embed.shape[0] - 1).long()].double() * scale


def borders(length: int, window: int, num_splits: int, grain: int, least: int) -> list[int]:
    """Where one row's context is cut, [splits + 1]: equal parts of whole grains, the last one shorter, then empty."""
    first = max(length - window, 0)
    per_split = -(-(length - first) // (num_splits * grain)) * grain
    size = max(per_split, least)
    return [min(first + i * size, length) for i in range(num_splits)] + [length]


def even_borders(length: int, window: int, num_splits: int, most: int, grain: int, least: int) -> list[int]:
    """The same, [splits + 1], in parts alike of `least` tokens or more, `most` of them at most."""
    first = max(length - window, 0)
    parts = min(max((length - first) // least, 1), most)
    size = -(-(length - first) // (parts * grain)) * grain
    return [min(first + i * size, length) if i < most else length for i in range(num_splits + 1)]
