"""The projection in plain torch, float64."""

from __future__ import annotations

import torch


def inverse_rms(squares: torch.Tensor, num_batch: int, width: int, eps: float) -> torch.Tensor:
    """[B, 1] float64 from partial sums of squares [parts, B_max]."""
    return (squares[:, :num_batch].double().sum(0) / width + eps).rsqrt()[:, None]


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, squares: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """What `kernel.linear` writes to y, float64 [B, N]."""
    y = x.double() @ weight.double().T
    if squares is not None:
        y = y * inverse_rms(squares, x.shape[0], x.shape[1], eps)
    return y if bias is None else y + bias.double()
