"""The projection onto the residual in plain torch, float64."""

from __future__ import annotations

import torch


def linear_residual(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, gain: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(residual, scaled, squares) after `kernel.linear_residual`: [B, N], [B, N] and the parts' sum [B], float64."""
    y = x.double() @ weight.double().T
    total = residual.double() + (y if bias is None else y + bias.double())
    return total, total * gain.double(), total.square().sum(1)
