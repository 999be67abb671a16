"""The normed addition in plain torch, float64."""

from __future__ import annotations

import torch


def residual_norm(
    y: torch.Tensor, post_gain: torch.Tensor, eps: float, gain: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(residual, scaled, squares) after `kernel.residual_norm`: [B, N], [B, N] and the parts' sum [B], float64."""
    y = y.double()
    total = residual.double() + y * (y.square().mean(1, keepdim=True) + eps).rsqrt() * post_gain.double()
    return total, total * gain.double(), total.square().sum(1)
