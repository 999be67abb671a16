"""The gated projection in plain torch, float64."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from twinpath.kernels.linear.reference import inverse_rms


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    squares: torch.Tensor,
    eps: float,
    activation: Literal["silu", "gelu_tanh"],
) -> torch.Tensor:
    """What `kernel.gated_linear` writes to y, float64 [B, N]."""
    gate, up = (x.double() @ weight.double().T * inverse_rms(squares, x.shape[0], x.shape[1], eps)).chunk(2, dim=1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up
