"""The exchanges in plain torch, over what all ranks hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def add_up(parts: Sequence[Tensor]) -> Tensor:
    """Their sum in rank order as float32, rounded once to their type: the kernels' bits."""
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        total += part.float()
    return total.to(parts[0].dtype)


def reduce_residual(
    parts: Sequence[Tensor],
    bias: Tensor | None,
    post_gain: Tensor | None,
    gain: Tensor,
    residual: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(residual, scaled, squares) after `launch.reduce_residual`: [B, N], [B, N] and the parts' sum [B], float64."""
    y = torch.stack([part.double() for part in parts]).sum(0)
    if bias is not None:
        y = y + bias.double()
    if post_gain is not None:
        y = y * (y.square().mean(1, keepdim=True) + eps).rsqrt() * post_gain.double()
    total = residual.double() + y
    return total, total * gain.double(), total.square().sum(1)
